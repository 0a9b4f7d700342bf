"""kornia: image processing in a forward, for images of any size."""

from __future__ import annotations

from typing import Any

import kornia
import torch
from torch import Tensor, nn

from tests.foreign.rows import Call, Table, noise, positive

TABLE = Table()
IMAGES = ((2, 16, 20), (1, 24, 16), (3, 12, 12))
MANY = ((2, 16, 20), (4, 24, 16), (3, 12, 12))  # a batch of one is a branch of its own


def pictures(b: int, h: int, w: int) -> tuple[Tensor]:
    return (positive(b, 3, h, w),)


def add(
    name: str, function: Any, inputs: Any = pictures, sizes: Any = IMAGES, **options: Any
) -> None:
    def call(x: Tensor, *rest: Tensor) -> Any:

        return function(kornia, x, *rest)

    TABLE.add(name, lambda: Call(call).eval(), inputs, sizes, **options)


def module(name: str, build: Any, inputs: Any = pictures, sizes: Any = IMAGES) -> None:
    def make() -> nn.Module:

        return build(kornia).eval()

    TABLE.add(name, make, inputs, sizes)


def gray(b: int, h: int, w: int) -> tuple[Tensor]:
    return (positive(b, 1, h, w),)


def points(n: int, m: int) -> tuple[Tensor, Tensor]:
    return noise(2, n, 3), noise(2, m, 3)


# Colours, filters, enhancement.
add("rgb_to_hsv", lambda k, x: k.color.hsv_to_rgb(k.color.rgb_to_hsv(x)))
add("rgb_to_lab", lambda k, x: k.color.rgb_to_lab(x))
add("rgb_to_grayscale", lambda k, x: k.color.rgb_to_grayscale(x))
add("rgb_to_ycbcr", lambda k, x: k.color.ycbcr_to_rgb(k.color.rgb_to_ycbcr(x)))
add("rgb_to_yuv420", lambda k, x: k.color.rgb_to_yuv420(x))
add("gaussian_blur", lambda k, x: k.filters.gaussian_blur2d(x, (5, 5), (1.5, 1.5)))
add("box_blur", lambda k, x: k.filters.box_blur(x, (3, 5)))
add("median_blur", lambda k, x: k.filters.median_blur(x, (3, 3)))
add("bilateral_blur", lambda k, x: k.filters.bilateral_blur(x, (3, 3), 0.1, (1.5, 1.5)))
add("sobel", lambda k, x: k.filters.sobel(x))
add("canny", lambda k, x: k.filters.canny(x, hysteresis=False), gray)
add("canny_hysteresis", lambda k, x: k.filters.canny(x), gray)
add("laplacian", lambda k, x: k.filters.laplacian(x, 3))
add("unsharp_mask", lambda k, x: k.filters.unsharp_mask(x, (3, 3), (1.5, 1.5)))
add("spatial_gradient", lambda k, x: k.filters.spatial_gradient(x))
add("blur_pool", lambda k, x: k.filters.blur_pool2d(x, 3))
add("motion_blur", lambda k, x: k.filters.motion_blur(x, 5, 30.0, 0.5))
add("guided_blur", lambda k, x: k.filters.guided_blur(x, x, 3, 0.1))
add("adjust_brightness", lambda k, x: k.enhance.adjust_brightness(x, 0.2))
add("adjust_contrast", lambda k, x: k.enhance.adjust_contrast(x, 1.2))
add("adjust_hue", lambda k, x: k.enhance.adjust_hue(x, 0.3))
add("adjust_gamma", lambda k, x: k.enhance.adjust_gamma(x, 0.7))
add("equalize", lambda k, x: k.enhance.equalize(x))
add(
    "equalize_clahe",
    lambda k, x: k.enhance.equalize_clahe(x, grid_size=(2, 2)),
    sizes=((2, 16, 16), (1, 16, 16)),
)
add("sharpness", lambda k, x: k.enhance.sharpness(x, 0.7))
add("posterize", lambda k, x: k.enhance.posterize(x, 3))
add(
    "normalize",
    lambda k, x: k.enhance.normalize(
        x, torch.tensor([0.4, 0.5, 0.5]), torch.tensor([0.2, 0.2, 0.3])
    ),
)
add("normalize_min_max", lambda k, x: k.enhance.normalize_min_max(x))
add(
    "histogram",
    lambda k, x, b: k.enhance.histogram(x, b, torch.tensor(0.9)),
    lambda n, m: (positive(n, m), positive(32)),
    ((2, 20), (1, 30)),
)

# Geometry.
add(
    "rotate",
    lambda k, x, a: k.geometry.rotate(x, a),
    lambda b, h, w: (positive(b, 3, h, w), 90 * positive(b)),
    MANY,
)
add(
    "warp_affine",
    lambda k, x, m: k.geometry.warp_affine(x, m, (10, 12)),
    lambda b, h, w: (
        positive(b, 3, h, w),
        torch.eye(3)[:2].expand(b, 2, 3) + 0.05 * noise(b, 2, 3),
    ),
    MANY,
)
add(
    "warp_perspective",
    lambda k, x, m: k.geometry.warp_perspective(x, m, (10, 12)),
    lambda b, h, w: (positive(b, 3, h, w), torch.eye(3).expand(b, 3, 3) + 0.01 * noise(b, 3, 3)),
    scale=100.0,
)
add("resize", lambda k, x: k.geometry.resize(x, (11, 13), antialias=True))
add(
    "resize_side",
    lambda k, x: k.geometry.resize(x, 10),
    sizes=((2, 16, 20), (1, 16, 24), (3, 12, 12)),
)
add("rescale", lambda k, x: k.geometry.rescale(x, 0.5))
add("hflip_center_crop", lambda k, x: k.geometry.center_crop(k.geometry.hflip(x), (8, 8)))
add(
    "crop_by_boxes",
    lambda k, x, y, z: k.geometry.crop_by_boxes(x, y, z),
    lambda b, h, w: (positive(b, 3, h, w), *boxes(b)),
    sizes=((2, 16, 20), (1, 24, 16)),
    refused="GP120",
)
add("pyrdown", lambda k, x: k.geometry.pyrup(k.geometry.pyrdown(x)))
add("build_pyramid", lambda k, x: k.geometry.build_pyramid(x, 3))
add(
    "elastic_transform",
    lambda k, x: k.geometry.elastic_transform2d(
        x, torch.zeros(x.shape[0], 2, x.shape[2], x.shape[3]), kernel_size=(3, 3), sigma=(1.0, 1.0)
    ),
)
add("create_meshgrid", lambda k, x: k.geometry.create_meshgrid(x.shape[2], x.shape[3]) + x.mean())
add(
    "remap",
    lambda k, x, y, z: k.geometry.remap(x, y, z),
    lambda b, h, w: (positive(b, 3, h, w), 9 * positive(b, 7, 8), 9 * positive(b, 7, 8)),
)
add(
    "homography_dlt",
    lambda k, x, y: k.geometry.find_homography_dlt(x, y),
    lambda b, n: (noise(b, n, 2), noise(b, n, 2)),
    ((2, 6), (1, 8)),
    scale=1000.0,
)
add(
    "homography_points",
    lambda k, x, y: k.geometry.transform_points(x, y),
    lambda b, n: (torch.eye(3).expand(b, 3, 3) + 0.1 * noise(b, 3, 3), noise(b, n, 2)),
    ((2, 6), (3, 8), (1, 1)),
)
add(
    "perspective_transform",
    lambda k, x, y: k.geometry.get_perspective_transform(x, y),
    lambda b, n: (boxes(b)[0], boxes(b)[1] + positive(b, 4, 2)),
    ((2, 0), (1, 0)),
    scale=100.0,
)
add(
    "axis_angle",
    lambda k, x: k.geometry.axis_angle_to_rotation_matrix(x),
    lambda n, m: (noise(n, 3),),
    ((4, 0), (1, 0), (7, 0)),
)
add(
    "quaternion",
    lambda k, x: k.geometry.quaternion_to_rotation_matrix(x),
    lambda n, m: (noise(n, 4),),
    ((4, 0), (1, 0), (7, 0)),
)
add(
    "rotation_to_quaternion",
    lambda k, x: k.geometry.rotation_matrix_to_quaternion(
        k.geometry.axis_angle_to_rotation_matrix(x)
    ),
    lambda n, m: (noise(n, 3),),
    ((4, 0), (1, 0), (7, 0)),
)
add(
    "project_points",
    lambda k, x, y: k.geometry.project_points(x, y),
    lambda n, m: (noise(n, 3), noise(n, 3, 3)),
    ((4, 0), (1, 0), (7, 0)),
)
add(
    "depth_to_3d",
    lambda k, x, y: k.geometry.depth_to_3d(x, y),
    lambda b, h, w: (positive(b, 1, h, w), torch.eye(3).expand(b, 3, 3)),
)
add("stereo_spatial_softmax", lambda k, x: k.geometry.subpix.spatial_soft_argmax2d(x))
add(
    "conv_soft_argmax", lambda k, x: k.geometry.subpix.conv_soft_argmax2d(x, (3, 3), (1, 1), (1, 1))
)
add("nms2d", lambda k, x: k.geometry.subpix.nms2d(x, (3, 3)))
add(
    "distance_transform",
    lambda k, x: k.contrib.distance_transform(x),
    sizes=((2, 16, 20), (1, 12, 20)),
)  # as many steps as the longer side has
add(
    "connected_components", lambda k, x: k.contrib.connected_components((x > 0.5).float(), 10), gray
)

# Features, losses, metrics, morphology.
module(
    "sift_descriptor",
    lambda k: k.feature.SIFTDescriptor(16),
    lambda b, s: (positive(b, 1, s, s),),
    ((2, 16), (1, 16), (5, 16)),
)
module(
    "hardnet",
    lambda k: k.feature.HardNet(pretrained=False),
    lambda b, s: (positive(b, 1, s, s),),
    ((2, 32), (1, 32), (5, 32)),
)
module(
    "sosnet",
    lambda k: k.feature.SOSNet(pretrained=False),
    lambda b, s: (positive(b, 1, s, s),),
    ((2, 32), (1, 32), (5, 32)),
)
module(
    "tfeat",
    lambda k: k.feature.TFeat(pretrained=False),
    lambda b, s: (positive(b, 1, s, s),),
    ((2, 32), (1, 32), (5, 32)),
)
module(
    "hynet",
    lambda k: k.feature.HyNet(pretrained=False),
    lambda b, s: (positive(b, 1, s, s),),
    ((2, 32), (1, 32), (5, 32)),
)
add("harris_response", lambda k, x: k.feature.harris_response(x), gray)
add("gftt_response", lambda k, x: k.feature.gftt_response(x), gray)
add("hessian_response", lambda k, x: k.feature.hessian_response(x), gray)
add(
    "match_nn",
    lambda k, x, y: k.feature.match_nn(x, y),
    lambda n, m: (noise(n, 8), positive(m, 8)),
    ((5, 7), (3, 9)),
)
add(
    "match_mnn",
    lambda k, x, y: k.feature.match_mnn(x, y),
    lambda n, m: (noise(n, 8), positive(m, 8)),
    ((5, 7), (3, 9)),
)
add(
    "match_snn",
    lambda k, x, y: k.feature.match_snn(x, y, 0.9),
    lambda n, m: (noise(n, 8), positive(m, 8)),
    ((5, 7), (3, 9)),
    refused="GP120",
)
add("ssim", lambda k, x: k.metrics.ssim(x, x.flip(0), 5))
add("psnr", lambda k, x: k.metrics.psnr(x, x.flip(-1), 1.0))
add(
    "dice_loss",
    lambda k, x, y: k.losses.dice_loss(x, y),
    lambda b, h, w: (noise(b, 3, h, w), (3 * positive(b, h, w)).long()),
)
add(
    "focal_loss",
    lambda k, x, y: k.losses.focal_loss(x, y, 0.5, reduction="mean"),
    lambda b, h, w: (noise(b, 3, h, w), (3 * positive(b, h, w)).long()),
)
add("total_variation", lambda k, x: k.losses.total_variation(x))
add("dilation", lambda k, x: k.morphology.dilation(x, torch.ones(3, 3)))
add("opening", lambda k, x: k.morphology.opening(x, torch.ones(3, 3)))
add(
    "extract_patches",
    lambda k, x: k.contrib.extract_tensor_patches(x, (4, 4), stride=4),
    sizes=((2, 16, 20), (1, 24, 16)),
)
module(
    "augmentation",
    lambda k: nn.Sequential(
        k.enhance.Normalize(0.5, 0.2),
        k.filters.GaussianBlur2d((3, 3), (1.0, 1.0)),
        k.geometry.Resize((12, 12)),
    ),
)


def boxes(b: int) -> tuple[Tensor, Tensor]:
    source = torch.tensor([[2.0, 2.0], [9.0, 2.0], [9.0, 8.0], [2.0, 8.0]])
    target = torch.tensor([[0.0, 0.0], [6.0, 0.0], [6.0, 4.0], [0.0, 4.0]])
    return source.repeat(b, 1, 1), target.repeat(b, 1, 1)
