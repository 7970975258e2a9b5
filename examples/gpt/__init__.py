"""A small language model that trains on CPUs, alone or split over ranks.

*Text* is made, not downloaded; the *model* knows no ranks; a *layout* splits the model and the batch over ranks.
None of the three knows Cairn: that is left to `train_gpt.py`.
"""
