// SPDX-License-Identifier: BSD-3-Clause
// Loops over the images of a batch, each with its own random numbers. The arithmetic of an image
// does not depend on the rest of its batch.
#include "lockstep/data/batch_transforms.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <random>
#include <utility>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/core/error.h"
#include "lockstep/data/sample_random.h"
#include "lockstep/tensor/device_copies.h"

namespace lockstep {
namespace {

void require_transform(bool is_valid, const std::string& complaint) {
  if (!is_valid) throw UsageError(complaint);
}

// The images of a batch as an array.
struct Images {
  at::Tensor tensor;
  std::int64_t count;
  std::int64_t channels;
  std::int64_t height;
  std::int64_t width;

  std::int64_t pixels() const { return height * width; }
  // A channel of an image.
  float* plane(std::int64_t image, std::int64_t channel) const {
    return tensor.data_ptr<float>() + (image * channels + channel) * pixels();
  }
};

Images images_of(const at::Tensor& tensor) {
  return {tensor, tensor.size(0), tensor.size(1), tensor.size(2), tensor.size(3)};
}

// The batch's images, contiguous: the batch's own memory if it can be changed in place.
Images images_in(torch::data::Example<>& batch, const BatchOrigin& origin, const char* transform) {
  const at::Tensor& data = batch.data;
  if (!data.defined() || data.dim() != 4 || data.scalar_type() != at::kFloat ||
      !data.device().is_cpu()) {
    throw UsageError(fmt::format(
        "{}: the batch is {}; give images as float32 [N, C, H, W] on the CPU", transform,
        data.defined() ? fmt::format("{} [{}] on {}", at::toString(data.scalar_type()),
                                     fmt::join(data.sizes(), ", "), data.device().str())
                       : "empty"));
  }
  if (static_cast<std::size_t>(data.size(0)) != origin.samples.size()) {
    throw UsageError(
        fmt::format("{}: the batch has {} images, but its origin names {} samples; name one for "
                    "each image",
                    transform, data.size(0), origin.samples.size()));
  }
  batch.data = on_host(data);
  return images_of(batch.data);
}

Images new_images(const Images& like, std::int64_t height, std::int64_t width, double fill) {
  return images_of(
      at::full({like.count, like.channels, height, width}, fill, at::TensorOptions(at::kFloat)));
}

SampleRandom random_of(const BatchOrigin& origin, std::int64_t image) {
  return {origin.seed, origin.epoch, origin.samples[static_cast<std::size_t>(image)], origin.place};
}

// A rectangle of one image of `from`, whose upper left corner may be outside it, as an image of
// `to`. Pixels outside `from` stay as they are.
void copy_rectangle(const Images& from, const Images& to, std::int64_t image, std::int64_t top,
                    std::int64_t left) {
  const std::int64_t first_row = std::max<std::int64_t>(0, -top);
  const std::int64_t last_row = std::min(to.height, from.height - top);
  const std::int64_t first = std::max<std::int64_t>(0, -left);
  const std::int64_t last = std::min(to.width, from.width - left);
  if (first >= last) return;
  for (std::int64_t channel = 0; channel < from.channels; ++channel) {
    const float* source = from.plane(image, channel);
    float* target = to.plane(image, channel);
    for (std::int64_t row = first_row; row < last_row; ++row) {
      std::copy_n(source + (row + top) * from.width + left + first, last - first,
                  target + row * to.width + first);
    }
  }
}

// How an image is rotated: about its centre, counter-clockwise.
class Rotation {
 public:
  Rotation(double degrees, const Images& images, float fill)
      : height_(images.height),
        width_(images.width),
        sine_(std::sin(degrees * std::numbers::pi / 180)),
        cosine_(std::cos(degrees * std::numbers::pi / 180)),
        fill_(fill) {}

  void rotate(const float* from, float* to) const {
    const double middle_x = static_cast<double>(width_ - 1) / 2;
    const double middle_y = static_cast<double>(height_ - 1) / 2;
    for (std::int64_t row = 0; row < height_; ++row) {
      const double y = static_cast<double>(row) - middle_y;
      for (std::int64_t column = 0; column < width_; ++column) {
        const double x = static_cast<double>(column) - middle_x;
        *to++ = interpolated(from, cosine_ * x - sine_ * y + middle_x,
                             sine_ * x + cosine_ * y + middle_y);
      }
    }
  }

 private:
  float pixel(const float* from, std::int64_t x, std::int64_t y) const {
    return x >= 0 && x < width_ && y >= 0 && y < height_ ? from[y * width_ + x] : fill_;
  }

  float interpolated(const float* from, double x, double y) const {
    const auto left = static_cast<std::int64_t>(std::floor(x));
    const auto top = static_cast<std::int64_t>(std::floor(y));
    const auto right_share = static_cast<float>(x - static_cast<double>(left));
    const auto lower_share = static_cast<float>(y - static_cast<double>(top));
    const float upper =
        pixel(from, left, top) * (1 - right_share) + pixel(from, left + 1, top) * right_share;
    const float lower = pixel(from, left, top + 1) * (1 - right_share) +
                        pixel(from, left + 1, top + 1) * right_share;
    return upper * (1 - lower_share) + lower * lower_share;
  }

  std::int64_t height_;
  std::int64_t width_;
  double sine_;
  double cosine_;
  float fill_;
};

// Draws the size of a rectangle to erase: height and width.
std::array<std::int64_t, 2> erased_size(const RandomErasingOptions& options, const Images& images,
                                        SampleRandom& random) {
  const double area =
      static_cast<double>(images.pixels()) * random.uniform(options.least_area, options.most_area);
  const double aspect =
      std::exp(random.uniform(std::log(options.least_aspect), std::log(options.most_aspect)));
  return {std::lround(std::sqrt(area * aspect)), std::lround(std::sqrt(area / aspect))};
}

void erase(const RandomErasingOptions& options, const Images& images, std::int64_t image,
           SampleRandom& random) {
  constexpr int kAttempts = 10;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const auto [height, width] = erased_size(options, images, random);
    if (height >= images.height || width >= images.width) continue;
    const std::int64_t top = random.below(images.height - height + 1);
    const std::int64_t left = random.below(images.width - width + 1);
    for (std::int64_t channel = 0; channel < images.channels; ++channel) {
      float* plane = images.plane(image, channel);
      for (std::int64_t row = top; row < top + height; ++row) {
        std::fill_n(plane + row * images.width + left, width, static_cast<float>(options.fill));
      }
    }
    return;
  }
}

// From Beta(alpha, alpha).
double draw_beta(double alpha, SampleRandom& random) {
  std::gamma_distribution<double> gamma(alpha);
  const double first = gamma(random);
  const double both = first + gamma(random);
  // With a tiny alpha both may underflow; the distribution then has nearly all weight at its ends.
  return both > 0 ? first / both : static_cast<double>(random.below(2));
}

std::int64_t class_at(const at::Tensor& targets, std::int64_t row, std::int64_t classes) {
  const std::int64_t target = targets.data_ptr<std::int64_t>()[row];
  if (target >= 0 && target < classes) return target;
  throw UsageError(fmt::format(
      "mixup: a target is {}, but .classes is {}; give the number of classes", target, classes));
}

void require_for_mixup(const torch::data::Example<>& batch, const BatchOrigin& origin) {
  const auto count = static_cast<std::int64_t>(origin.samples.size());
  const bool is_valid = batch.data.defined() && batch.data.scalar_type() == at::kFloat &&
                        batch.data.device().is_cpu() && batch.data.dim() > 0 &&
                        batch.data.size(0) == count && batch.target.defined() &&
                        batch.target.scalar_type() == at::kLong && batch.target.device().is_cpu() &&
                        batch.target.dim() == 1 && batch.target.size(0) == count;
  require_transform(is_valid,
                    "mixup: give float32 data and int64 targets [N] on the CPU, and one sample of "
                    "the origin for each row");
  require_transform(origin.load && origin.dataset_size > 0,
                    "mixup: the origin has no .load and .dataset_size, but each sample is mixed "
                    "with another one of the data set; set both, or use a DataLoader");
}

// Applies the first `count` transforms.
void apply_first(const std::vector<BatchTransform>& transforms, std::size_t count,
                 torch::data::Example<>& batch, const BatchOrigin& origin) {
  for (std::size_t place = 0; place < count; ++place) {
    BatchOrigin at_place = origin;
    at_place.place = place;
    if (origin.load) {
      at_place.load = [&, place](std::span<const std::size_t> samples) {
        torch::data::Example<> others = origin.load(samples);
        BatchOrigin of_others = origin;
        of_others.samples = samples;
        apply_first(transforms, place, others, of_others);
        return others;
      };
    }
    transforms[place](batch, at_place);
  }
}

}  // namespace

void apply_transforms(const std::vector<BatchTransform>& transforms, torch::data::Example<>& batch,
                      const BatchOrigin& origin) {
  apply_first(transforms, transforms.size(), batch, origin);
}

BatchTransform random_crop(const RandomCropOptions& options) {
  require_transform(options.height > 0 && options.width > 0 && options.padding >= 0,
                    fmt::format("random_crop: height is {}, width {} and padding {}; give a "
                                "positive height and width, and a padding of at least 0",
                                options.height, options.width, options.padding));
  return [options](torch::data::Example<>& batch, const BatchOrigin& origin) {
    const Images images = images_in(batch, origin, "random_crop");
    const std::int64_t spare_rows = images.height + 2 * options.padding - options.height;
    const std::int64_t spare_columns = images.width + 2 * options.padding - options.width;
    if (spare_rows < 0 || spare_columns < 0) {
      throw UsageError(fmt::format(
          "random_crop: images of {} x {} with a padding of {} are smaller than {} x {}; give "
          "larger images, or more padding",
          images.height, images.width, options.padding, options.height, options.width));
    }
    const Images cropped = new_images(images, options.height, options.width, options.fill);
    for (std::int64_t image = 0; image < images.count; ++image) {
      SampleRandom random = random_of(origin, image);
      const std::int64_t top = random.below(spare_rows + 1) - options.padding;
      const std::int64_t left = random.below(spare_columns + 1) - options.padding;
      copy_rectangle(images, cropped, image, top, left);
    }
    batch.data = cropped.tensor;
  };
}

BatchTransform random_horizontal_flip(double probability) {
  require_transform(
      probability >= 0 && probability <= 1,
      fmt::format("random_horizontal_flip: the probability is {}; give 0 to 1", probability));
  return [probability](torch::data::Example<>& batch, const BatchOrigin& origin) {
    const Images images = images_in(batch, origin, "random_horizontal_flip");
    for (std::int64_t image = 0; image < images.count; ++image) {
      if (random_of(origin, image).uniform() >= probability) continue;
      for (std::int64_t channel = 0; channel < images.channels; ++channel) {
        float* row = images.plane(image, channel);
        for (std::int64_t i = 0; i < images.height; ++i, row += images.width) {
          std::reverse(row, row + images.width);
        }
      }
    }
  };
}

BatchTransform random_rotation(const RandomRotationOptions& options) {
  require_transform(options.degrees >= 0 && options.degrees <= 180,
                    fmt::format("random_rotation: degrees is {}; give 0 to 180", options.degrees));
  return [options](torch::data::Example<>& batch, const BatchOrigin& origin) {
    const Images images = images_in(batch, origin, "random_rotation");
    const Images rotated = new_images(images, images.height, images.width, options.fill);
    for (std::int64_t image = 0; image < images.count; ++image) {
      const double angle = random_of(origin, image).uniform(-options.degrees, options.degrees);
      const Rotation rotation(angle, images, static_cast<float>(options.fill));
      for (std::int64_t channel = 0; channel < images.channels; ++channel) {
        rotation.rotate(images.plane(image, channel), rotated.plane(image, channel));
      }
    }
    batch.data = rotated.tensor;
  };
}

BatchTransform random_erasing(const RandomErasingOptions& options) {
  require_transform(
      options.probability >= 0 && options.probability <= 1 && options.least_area > 0 &&
          options.least_area <= options.most_area && options.most_area <= 1 &&
          options.least_aspect > 0 && options.least_aspect <= options.most_aspect &&
          std::isfinite(options.most_aspect),
      fmt::format("random_erasing: probability is {}, the area {} to {} and the aspect {} to {}; "
                  "give a probability from 0 to 1, areas above 0 and up to 1, and positive "
                  "aspects, the least first",
                  options.probability, options.least_area, options.most_area, options.least_aspect,
                  options.most_aspect));
  return [options](torch::data::Example<>& batch, const BatchOrigin& origin) {
    const Images images = images_in(batch, origin, "random_erasing");
    for (std::int64_t image = 0; image < images.count; ++image) {
      SampleRandom random = random_of(origin, image);
      if (random.uniform() < options.probability) erase(options, images, image, random);
    }
  };
}

BatchTransform normalize(std::vector<double> mean, std::vector<double> deviation) {
  require_transform(
      !mean.empty() && mean.size() == deviation.size() &&
          std::ranges::all_of(deviation, [](double value) { return value > 0; }),
      fmt::format("normalize: {} means and {} deviations; give one of both for each channel, and "
                  "positive deviations",
                  mean.size(), deviation.size()));
  return [mean = std::move(mean), deviation = std::move(deviation)](torch::data::Example<>& batch,
                                                                    const BatchOrigin& origin) {
    const Images images = images_in(batch, origin, "normalize");
    if (static_cast<std::size_t>(images.channels) != mean.size()) {
      throw UsageError(fmt::format(
          "normalize: the images have {} channels, but {} means are given; give one for each "
          "channel",
          images.channels, mean.size()));
    }
    for (std::int64_t image = 0; image < images.count; ++image) {
      for (std::int64_t channel = 0; channel < images.channels; ++channel) {
        const auto shift = static_cast<float>(mean[static_cast<std::size_t>(channel)]);
        const auto scale = static_cast<float>(deviation[static_cast<std::size_t>(channel)]);
        float* plane = images.plane(image, channel);
        for (std::int64_t i = 0; i < images.pixels(); ++i) plane[i] = (plane[i] - shift) / scale;
      }
    }
  };
}

BatchTransform mixup(const MixupOptions& options) {
  require_transform(options.alpha > 0 && std::isfinite(options.alpha) && options.classes > 0,
                    fmt::format("mixup: alpha is {} and classes {}; give positive numbers",
                                options.alpha, options.classes));
  return [options](torch::data::Example<>& batch, const BatchOrigin& origin) {
    require_for_mixup(batch, origin);
    const auto count = static_cast<std::int64_t>(origin.samples.size());
    std::vector<std::size_t> partners;
    std::vector<float> weights;
    for (std::int64_t row = 0; row < count; ++row) {
      SampleRandom random = random_of(origin, row);
      const auto others = static_cast<std::int64_t>(origin.dataset_size);
      partners.push_back(static_cast<std::size_t>(random.below(others)));
      weights.push_back(static_cast<float>(draw_beta(options.alpha, random)));
    }
    const torch::data::Example<> others = origin.load(partners);
    require_transform(others.data.sizes() == batch.data.sizes(),
                      "mixup: the samples of the data set have several shapes; give all one shape");
    const at::Tensor data = on_host(batch.data);
    const at::Tensor other_data = on_host(others.data);
    const at::Tensor targets = on_host(batch.target);
    const at::Tensor other_targets = on_host(others.target);
    const at::Tensor shares = at::zeros({count, options.classes}, at::TensorOptions(at::kFloat));
    const std::int64_t elements = count == 0 ? 0 : data.numel() / count;
    for (std::int64_t row = 0; row < count; ++row) {
      const float weight = weights[static_cast<std::size_t>(row)];
      float* own = data.data_ptr<float>() + row * elements;
      const float* other = other_data.data_ptr<float>() + row * elements;
      for (std::int64_t i = 0; i < elements; ++i) {
        own[i] = weight * own[i] + (1 - weight) * other[i];
      }
      float* share = shares.data_ptr<float>() + row * options.classes;
      share[class_at(targets, row, options.classes)] += weight;
      share[class_at(other_targets, row, options.classes)] += 1 - weight;
    }
    batch = {data, shares};
  };
}

}  // namespace lockstep
