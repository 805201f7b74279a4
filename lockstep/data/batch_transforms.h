// SPDX-License-Identifier: BSD-3-Clause
// Public. Random and other changes of batches of images, for a DataLoader (data_loader.h) or a loop
// of one's own:
//
//   lockstep::DataLoader loader(cifar, sampler, {
//       .batch_size = 128,
//       .transforms = {lockstep::random_crop({.height = 32, .width = 32, .padding = 4}),
//                      lockstep::random_horizontal_flip(),
//                      lockstep::normalize({0.491, 0.482, 0.447}, {0.247, 0.243, 0.262})}});
//
// The random numbers of a sample are a function of the seed, the epoch, the sample's index and the
// transform's place in the list. They are the same for any number of ranks and workers, after a
// resumption, and in whatever order the samples are drawn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <torch/data/example.h>

namespace lockstep {

// The samples of a batch, and what their random numbers derive from.
struct BatchOrigin {
  std::int64_t seed = 0;
  std::int64_t epoch = 0;
  // The index of each sample in the data set, in the batch's order.
  std::span<const std::size_t> samples = {};
  // The transform's place in its list; apply_transforms() sets it.
  std::size_t place = 0;
  // The number of samples in the data set.
  std::size_t dataset_size = 0;
  // Loads other samples of the data set as a batch. Only mixup calls it. apply_transforms()
  // replaces it, so that a transform gets them as the transforms before it left them.
  std::function<torch::data::Example<>(std::span<const std::size_t> samples)> load = {};
};

// Changes or replaces the batch's tensors. Called by several threads at once, without gradients. A
// transform of one's own is a function, which draws with the parts of the origin as its key.
using BatchTransform =
    std::function<void(torch::data::Example<>& batch, const BatchOrigin& origin)>;

// Applies the transforms in their order. DataLoader does so; call it in a loop without one.
void apply_transforms(const std::vector<BatchTransform>& transforms, torch::data::Example<>& batch,
                      const BatchOrigin& origin);

// The transforms below take batches whose data is float32 [N, C, H, W] on the CPU, and throw
// UsageError for others, and where they are made for options out of range. They keep the number of
// channels and, except for mixup, the targets.

struct RandomCropOptions {
  // The size of the result, at most that of the padded image. Required.
  std::int64_t height = 0;
  std::int64_t width = 0;
  // Pixels of value `fill` on each side before the image is cropped.
  std::int64_t padding = 0;
  double fill = 0;
};
// Cuts a rectangle at a random position, like torchvision's RandomCrop.
BatchTransform random_crop(const RandomCropOptions& options);

// Mirrors an image, left to right, with this probability, like torchvision's RandomHorizontalFlip.
BatchTransform random_horizontal_flip(double probability = 0.5);

struct RandomRotationOptions {
  // The angle is between -degrees and degrees. Required, from 0 to 180.
  double degrees = 0;
  // The value of pixels that were outside the image.
  double fill = 0;
};
// Rotates an image about its centre by a random angle, like torchvision's RandomRotation with
// InterpolationMode.BILINEAR (its default is the nearest pixel); the size stays.
BatchTransform random_rotation(const RandomRotationOptions& options);

struct RandomErasingOptions {
  double probability = 0.5;
  // The share of the image's area that is erased.
  double least_area = 0.02;
  double most_area = 0.33;
  // Height divided by width, drawn with uniformly distributed logarithm.
  double least_aspect = 0.3;
  double most_aspect = 3.3;
  double fill = 0;
};
// Fills a random rectangle with this probability, like torchvision's RandomErasing. An image into
// which none of ten rectangles fits stays as it is.
BatchTransform random_erasing(const RandomErasingOptions& options = {});

// Subtracts the mean of each channel and divides by its standard deviation. UsageError unless there
// is one of both for each channel, and the deviations are positive.
BatchTransform normalize(std::vector<double> mean, std::vector<double> deviation);

struct MixupOptions {
  // The weight of the sample itself is drawn from Beta(alpha, alpha). The default of torchvision's
  // MixUp is 1.
  double alpha = 0.2;
  // The number of classes. Required.
  std::int64_t classes = 0;
};
// Mixes each sample with another one (Zhang et al. 2018), and makes its int64 targets [N] float32
// [N, classes], which torch::cross_entropy_loss takes. Data may have any shape here.
//
// The partner is drawn from the whole data set, and not from the batch as elsewhere, since the
// samples of a batch depend on the number of ranks. It is loaded too, with the transforms before
// this one, so that a batch takes twice the time to load. UsageError if the origin cannot load, or
// for a target that is not a class.
BatchTransform mixup(const MixupOptions& options);

}  // namespace lockstep
