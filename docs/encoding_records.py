"""The facts of encodings that the library does not have: a sentence, the formula, pictures, users."""

# ruff: noqa: E501 (sentences of a page)

from typing import NamedTuple


class Record(NamedTuple):
    """The facts of one encoding.

    Attributes:
        title: usual name of the method.
        sentence: what it is.
        formulas: LaTeX, one display each.
        symbols: what the letters mean.
        on_grids: what it does on images and other grids.
        pictures: files of docs/figures/gallery.
        used_by: released models that use it.
        functions: public functions of `pejax` that it is made of, beside those of its own module.
        more: a remark on its measurements, "" = none.
        learned: what is learned, in a few words, "" = nothing.
        on_images: what it does on images, in a few words.
        cited: papers, as tables name them.
        played: name of the page to play with in `docs/play.md`, "" = none.
    """

    title: str
    sentence: str
    formulas: tuple[str, ...]
    symbols: str
    on_grids: str
    pictures: tuple[str, ...]
    used_by: str
    functions: tuple[str, ...] = ()
    more: str = ""
    learned: str = ""
    on_images: str = ""
    cited: str = ""
    played: str = ""


NO_MODEL = "No widely used released model that we know of."

RECORDS: dict[str, Record] = {
    "none": Record(
        "No encoding (NoPE)",
        "Attention without any positional encoding: in a decoder, the causal mask alone carries position.",
        (r"\mathrm{logits}_{hij} = s \, q_i^\top k_j",),
        "q and k are the query and the key of head h at tokens i and j; s is the scale of the dot product, usually 1/√D with D channels per head.",
        "The same. Without a mask, a model without positions cannot tell one arrangement of patches from another.",
        ("all_word_order.svg", "none_token_points.gif"),
        "Some layers of SmolLM3 and Llama 4 (every fourth one), and the layers with global attention of Cohere's Command R7B. Their other layers use RoPE.",
        cited="Kazemnejad et al. 2023",
    ),
    "sinusoidal": Record(
        "Sinusoidal encoding",
        "Fixed sines and cosines of the position, added to the input once.",
        (
            r"x'_n = x_n + \mathrm{PE}(p_n)",
            r"\mathrm{PE}(p)_{2i} = \sin\left(p \, b^{-2i/C}\right)",
            r"\mathrm{PE}(p)_{2i+1} = \cos\left(p \, b^{-2i/C}\right)",
        ),
        "x is the input of the first layer with C channels, p the position, b the base (10,000).",
        "The channels are split over the axes: one half encodes the row, the other half the column.",
        ("sinusoidal_embedding.svg", "sinusoidal_embedding_curves.svg", "sinusoidal_position_similarity.svg"),
        "The original Transformer and the encoder of Whisper; on images MAE and MoCo v3.",
        on_images="channels split over axes",
        cited="Vaswani et al. 2017",
        played="sinusoid",
    ),
    "learned": Record(
        "Learned table",
        "A learned vector for each position, added to the input once.",
        (r"x'_n = x_n + E_{p_n}",),
        "x is the input of the first layer, p the position, E the table: one row per position, one column per channel.",
        "One row per patch of the trained grid. For another grid the table is resized, bicubically by default. `factorized=True` has one table per axis.",
        ("learned_embedding.svg",),
        "BERT and GPT-2; on images ViT, CLIP, SigLIP and DINOv2.",
        more="On text the table ends at the trained length and longer inputs are refused, unless `extend=resize()` stretches it. On images it is always resized.",
        learned="table",
        on_images="table of the grid",
        cited="Dosovitskiy et al. 2021",
    ),
    "fourier": Record(
        "Fourier features",
        "Waves of the coordinates, projected to the width by a trained matrix and added to the input once.",
        (
            r"x'_n = x_n + P \, \gamma(c_n)",
            r"\gamma(c) = \left[ \sin\left(2^k \pi s \, c_a\right), \cos\left(2^k \pi s \, c_a\right) \right]_{a,k} \quad (\text{powers})",
            r"\gamma(c) = \left[ \cos\left(2 \pi B c\right), \sin\left(2 \pi B c\right) \right] \quad (\text{random})",
            r"\gamma(c) = \mathrm{gelu}\left( W \left[ \cos\left(R c\right), \sin\left(R c\right) \right] / \sqrt{F} + w \right) \quad (\text{learned})",
        ),
        "x is the input of the first layer, c the coordinates of a token on the axes a, k = 0, 1, … the octave, ten or as many as the extent tells apart, s the scale, F the number of features. P, W, w and R are learned; B is drawn once, from a normal distribution of standard deviation s. With an extent, coordinates are the centers of tokens or patches between −1 and 1; without one, positions are coordinates.",
        "Octaves of each coordinate, or waves in any direction (`kind='random'` and `'learned'`). The centers of the patches of any grid lie between −1 and 1.",
        ("fourier_position_similarity.svg",),
        "NeRF and its descendants, and implicit models of pictures, as layers of coordinates; random features code points and boxes in SAM.",
        more="Not trained here yet. Beyond the trained length of a sequence its slowest wave repeats: positions there are refused, unless `extend=pi()` scales them into it.",
        learned="matrix; optional waves",
        on_images="centers from -1 to 1",
        cited="Mildenhall et al. 2020, Tancik et al. 2020, Li et al. 2021",
    ),
    "shaw": Record(
        "Shaw's relative positions",
        "A learned vector for each clipped distance, added to the keys and to the values.",
        (
            r"\mathrm{logits}_{hij} = s \, q_i^\top \left( k_j + a_{r(i,j)} \right)",
            r"o_i = \sum_j w_{ij} \left( v_j + c_{r(i,j)} \right)",
            r"r(i,j) = \max\left(-m, \min\left(m, p_j - p_i\right)\right)",
        ),
        "a and c are the two tables of 2m + 1 rows that all heads of a layer share, m the clip (16), w the attention weights, o the output and s the scale.",
        "One pair of tables per axis; the terms of the axes are added.",
        ("shaw_shaw_table.svg",),
        "Music Transformer, and the speech encoder Wav2Vec2-BERT (keys alone: `values=False`).",
        learned="tables per layer",
        on_images="sum over axes",
        cited="Shaw et al. 2018",
    ),
    "transformer_xl": Record(
        "Transformer-XL",
        "Queries multiply a learned projection of a sinusoid of the distance, and two learned vectors act as queries of their own.",
        (
            r"\mathrm{logits}_{hij} = s \left( q_i^\top k_j + q_i^\top W_h^\top r_{ij} + u_h^\top k_j + v_h^\top W_h^\top r_{ij} \right)",
            r"r_{ij} = \left[ \sin\left((p_i - p_j) \, \omega\right), \cos\left((p_i - p_j) \, \omega\right) \right]",
        ),
        "u, v and W are learned in every layer and head; ω are the fixed frequencies of the sinusoid; s is the scale.",
        "One sinusoid, one W and one v per axis; their terms are added.",
        ("transformer_xl_transformer_xl_terms.svg",),
        "Transformer-XL and XLNet, and speech encoders of the Conformer family such as Parakeet.",
        learned="u, v, W_r per layer",
        on_images="sum over axes",
        cited="Dai et al. 2019",
    ),
    "t5": Record(
        "T5's bias",
        "One learned number per head and bucket of distances, added to the logits; buckets get wider with the distance.",
        (
            r"\mathrm{logits}_{hij} = s \, q_i^\top k_j + B_{h,\,\beta(p_j - p_i)}",
            r"\beta(d) = \left|d\right| \text{ for } \left|d\right| < N/2, \text{ else }",
            r"\beta(d) = \min\left(N - 1, \; N/2 + \left\lfloor \frac{\log(2 \left|d\right| / N)}{\log(2 M / N)} \, N/2 \right\rfloor\right)",
        ),
        "B is the table, N the number of buckets per side (all 32 with a causal mask; else 16 for each side, and N is added for keys after the query), M = 128 the distance from which all share the last bucket. T5 itself has s = 1.",
        "One table per axis; the terms of the axes are added.",
        ("t5_t5_buckets.svg", "t5_bias_curves.svg"),
        "T5, mT5, Flan-T5, LongT5 and Switch Transformers; MPNet has the same buckets in an encoder.",
        learned="table",
        on_images="sum over axes",
        cited="Raffel et al. 2020",
        played="bias",
    ),
    "kerple": Record(
        "KERPLE",
        "A penalty that grows with the logarithm of the distance, or with a power of it, with two learned numbers per head.",
        (
            r"\mathrm{logits}_{hij} = s \, q_i^\top k_j - r_{1,h} \log\left(1 + r_{2,h} \left|p_j - p_i\right|\right)",
            r"\mathrm{logits}_{hij} = s \, q_i^\top k_j - r_{1,h} \left|p_j - p_i\right|^{r_{2,h}} \quad (\text{variant power})",
        ),
        "r₁ and r₂ are learned and kept positive, one of each per head; s is the scale.",
        "The distance is Euclidean.",
        ("kerple_bias_curves.svg",),
        NO_MODEL,
        learned="two numbers per head",
        on_images="Euclidean",
        cited="Chi et al. 2022",
        played="bias",
    ),
    "fire": Record(
        "FIRE",
        "A small learned network of the distance, where the distance is measured relative to the position of the query.",
        (
            r"\mathrm{logits}_{hij} = s \, q_i^\top k_j + f_h\left( \frac{\log\left(\left|c \, (p_j - p_i)\right| + 1\right)}{\log\left(\left|c \, n_{ij}\right| + 1\right) + \varepsilon} \right)",
            r"n_{ij} = \max(p_i, L) \text{ with a causal mask}",
            r"n_{ij} = \max(p_i, p_j, L) \text{ without}",
        ),
        "f is a network with one hidden layer of 32 units, c and L are learned too, ε = 10⁻⁶ and s is the scale. The argument of f stays between 0 and 1 at any length.",
        "One network per axis; their terms are added.",
        ("fire_bias_curves.svg", "fire_grid_bias.svg"),
        NO_MODEL,
        more="XLA counts the body of a loop once, and FIRE's program for CPUs loops over its hidden units: its FLOPs are a lower bound.",
        learned="small network",
        on_images="sum over axes",
        cited="Li et al. 2024",
        played="bias",
    ),
    "cpb": Record(
        "Continuous position bias",
        "A small learned network of the offset between two patches, on logarithmic axes, shared by all grids.",
        (
            r"\mathrm{logits}_{hij} = s \, q_i^\top k_j + 16 \, \sigma\left(w_h^\top \mathrm{relu}(A u + b)\right) - 8",
            r"u_a = \mathrm{sign}(\Delta_a) \, \log_2\left(1 + \frac{8 \left|\Delta_a\right|}{L_a - 1}\right) / 3, \qquad \Delta = p_j - p_i",
        ),
        "L is the trained number of patches on an axis, A, b and w are learned, σ is the logistic function and s the scale. u is ±1 at the far edge of the trained grid and grows slowly beyond it.",
        "One network of the offsets on all axes.",
        ("cpb_grid_bias.svg",),
        "Swin Transformer V2.",
        learned="small network per layer",
        on_images="offset on all axes",
        cited="Liu et al. 2022",
        played="bias",
    ),
    "lookhere": Record(
        "LookHere",
        "Each head sees the patches in one direction alone, and a penalty grows linearly with their distance.",
        (
            r"\mathrm{logits}_{hij} = s \, q_i^\top k_j - m_h \|\Delta\| \text{ if } N_h \Delta \ge 0",
            r"\mathrm{logits}_{hij} = -\infty \text{ otherwise}",
            r"\Delta = p_j - p_i, \qquad m_h = g \, d_l \, r_h",
        ),
        "N are the two normals of a head's cone, d falls from 1.5 in the first layer to 0.5 in the last, r is 1 in a head with a direction, g is `slope_scale` and s the scale. Nothing is learned.",
        "The cone of a head is a half plane, a quarter or an eighth of the plane; some heads have no direction.",
        ("lookhere_grid_bias.svg",),
        NO_MODEL,
        on_images="a cone per head",
        cited="Fuller et al. 2024",
        played="bias",
    ),
    "relative_table": Record(
        "Relative table",
        "A learned number per head for every offset between two patches.",
        (r"\mathrm{logits}_{hij} = s \, q_i^\top k_j + \mathrm{table}_h\left[p_j - p_i\right]",),
        "The table has (2h − 1)(2w − 1) cells on a grid of h by w patches and starts at 0; s is the scale.",
        "One cell per offset. On another grid the table is resized, bicubically.",
        ("all_family_tree.svg",),
        "Swin Transformer and BEiT.",
        learned="table per layer",
        on_images="one cell per offset",
        cited="Liu et al. 2021, Bao et al. 2021",
    ),
    "alibi": Record(
        "ALiBi",
        "A penalty linear in the distance, with one fixed slope per head.",
        (
            r"\mathrm{logits}_{hij} = s \, q_i^\top k_j - m_h \left|p_j - p_i\right|",
            r"m_h = 2^{-8(h+1)/H} \quad (H \text{ a power of two})",
        ),
        "m are the slopes of the H heads, h = 0 … H − 1, the steepest first; s is the scale. `learned=True` trains the slopes.",
        "The distance is Euclidean.",
        ("alibi_bias_curves.svg", "alibi_slopes.svg", "alibi_grid_bias.svg"),
        "BLOOM, MPT and Falcon-RW; without a causal mask jina-embeddings-v2; on images CROMA.",
        more="In these runs on images, with 7 × 7 patches, ALiBi is close to no encoding at all.",
        learned="optional slopes",
        on_images="Euclidean",
        cited="Press et al. 2022, Fuller et al. 2023",
        played="bias",
    ),
    "rope": Record(
        "RoPE",
        "Queries and keys are rotated by their position, so that their dot product depends on the distance alone.",
        (
            r"\mathrm{logits}_{hij} = s \left(R_{p_i} q_i\right)^\top \left(R_{p_j} k_j\right) = s \, q_i^\top R_{p_j - p_i} k_j",
            r"\left(R_p x\right)_{2i} = x_{2i} \cos(p \, \theta_i) - x_{2i+1} \sin(p \, \theta_i)",
            r"\left(R_p x\right)_{2i+1} = x_{2i} \sin(p \, \theta_i) + x_{2i+1} \cos(p \, \theta_i), \qquad \theta_i = b^{-2i/D}",
        ),
        "D channels per head make D/2 pairs; at position p, pair i turns by the angle p θ. b is the base (10,000) and s the scale. The pairs are neighbors here (`pairing='interleaved'`).",
        "The position is the raster index, row by row. `rope_axial` and `rope_mixed` are made for grids.",
        ("rope_rotary_steps.svg", "rope_rotation.svg", "rope_logits_by_distance.svg"),
        "GPT-J, GPT-NeoX, PaLM, Llama, Mistral, Qwen and Gemma; encoders such as ModernBERT.",
        ("rope_apply",),
        on_images="counted row by row",
        cited="Su et al. 2021",
        played="needle",
    ),
    "rope_axial": Record(
        "Axial RoPE",
        "RoPE for grids: each pair of channels is rotated by the position on one axis.",
        (
            r"\mathrm{logits}_{hij} = s \, q_i^\top R_{p_j - p_i} k_j",
            r"R_p \text{ turns pair } t \text{ by the angle } p_{a(t)} \, \theta_t",
            r"\theta_t = b^{-2 \, l(t) / w}, \qquad l(t) = 0, \ldots, \frac{w}{2} - 1",
        ),
        "a(t) is the axis of pair t, l(t) its index among the pairs of that axis, w the channels of that axis, D/A of the D channels per head on A axes unless `widths` says otherwise, b the base (100) and s the scale.",
        "The pairs are divided among the axes: the first half of them rotates by the row, the second half by the column (`widths`, `layout` and `indexing` change that). `periodic` makes an axis a circle, such as longitude.",
        ("rope_mixed_plane_waves.svg",),
        "The RoPE-Axial models of rope-vit, and, with the presets below, Flux, Qwen-Image, Wan, HunyuanVideo, LTX, CogVideoX and other models of pictures and videos; Qwen2-VL, Qwen3-VL and ERNIE 4.5 VL; the vision encoders of Pixtral, Gemma 4, Llama 4, Kimi and DINOv3.",
        ("rope_apply",),
        on_images="pairs split over axes",
        cited="Heo et al. 2024",
    ),
    "rope_mixed": Record(
        "RoPE-Mixed",
        "RoPE for grids with learned frequencies: every pair of every head has its own direction, along which it rotates.",
        (
            r"\mathrm{logits}_{hij} = s \, q_i^\top R_{p_j - p_i} k_j",
            r"R_p \text{ turns pair } t \text{ of head } h \text{ by the angle } \sum_{a} p_a \, f_{h,a,t}",
        ),
        "f are the learned frequencies in every layer, for each key/value head, axis a and pair t; s is the scale.",
        "As in the formula. On one axis it is RoPE with learned frequencies.",
        ("rope_mixed_plane_waves.svg", "rope_mixed_learned_frequencies.svg"),
        "The RoPE-Mixed models of rope-vit, which timm has too.",
        ("rope_apply",),
        learned="frequencies per layer",
        on_images="one direction per pair",
        cited="Heo et al. 2024",
    ),
}  # fmt: skip
