"""Getting content out of packs with few, large, parallel reads.

* **group** - chunks that the caller wants delivered together.
* **read plan** - which byte ranges of which packs to fetch for which groups; pure, printable.
* **execute** - fetches, opens and delivers under a memory budget.
* **shared reads** - readers of one host fetch what several of them want once, and hand it to each other, sealed.

Knows no name of a model and no file.
"""
