"""Growing token trees: what members propose, how a tree is grown level by level, and how proposals become one tree."""
