"""A table or figure of a paper: `blendfilter reproduce`, from a checkout.

python eval/reproduce.py table1 --data sample --limit 20         # the sample world and the offline reader: free
"""

import sys

from blendfilter.cli import main

sys.argv[1:1] = ["reproduce"]
main()
