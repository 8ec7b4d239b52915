# %% [markdown]
# # Why does attention need position at all?
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/pejax/pejax/blob/main/colab/01_why_position.ipynb)
#
# Attention without position sees a bag of words.

# %%
# %matplotlib inline
try:
    import pejax
except ImportError:
    # %pip install -q "pejax[train,visualize] @ git+https://github.com/pejax/pejax"
    import pejax

# %%
import pejax.visualize

dims = pejax.Dims(heads=4, head_dim=16)
factories = {name: pejax.make_encoding(name, dims) for name in ["none", "alibi", "rope"]}
print(pejax.explain(factories["rope"], dims))
pejax.visualize.plot_word_order(factories, dims)
