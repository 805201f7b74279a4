// SPDX-License-Identifier: BSD-3-Clause
// What each transform computes, and that a sample's result does not depend on its batch.
#include "lockstep/data/batch_transforms.h"

#include <ATen/ops/affine_grid_generator.h>
#include <ATen/ops/grid_sampler.h>
#include <gmock/gmock.h>
#include <torch/types.h>

#include "lockstep/core/error.h"
#include "lockstep/data/sample_random.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Batch = torch::data::Example<>;
using Samples = std::vector<std::size_t>;

// Image i of the data set: 3 channels of 9 x 7 pixels, all of them different and positive.
at::Tensor image(std::size_t i) {
  return torch::arange(1, 1 + 3 * 9 * 7, torch::kFloat).reshape({3, 9, 7}) +
         static_cast<double>(i) * 1000;
}

Batch batch_of(std::span<const std::size_t> samples) {
  std::vector<at::Tensor> images;
  std::vector<std::int64_t> classes;
  for (const std::size_t i : samples) {
    images.push_back(image(i));
    classes.push_back(static_cast<std::int64_t>(i % 5));
  }
  return {torch::stack(images), torch::tensor(classes)};
}

BatchOrigin origin_of(const Samples& samples, std::int64_t epoch = 0) {
  return {.seed = 7, .epoch = epoch, .samples = samples, .dataset_size = 100, .load = batch_of};
}

Batch transformed(const std::vector<BatchTransform>& transforms, const Samples& samples,
                  std::int64_t epoch = 0) {
  Batch batch = batch_of(samples);
  apply_transforms(transforms, batch, origin_of(samples, epoch));
  return batch;
}

Samples first_samples(std::size_t count) {
  Samples samples(count);
  for (std::size_t i = 0; i < count; ++i) samples[i] = i;
  return samples;
}

template <class Function>
void expect_transform_refused(const Function& function, const std::string& text) {
  EXPECT_THAT(function, ThrowsMessage<UsageError>(HasSubstr(text)));
}

TEST(BatchTransforms, GiveASampleTheSameInAnyBatch) {
  const std::vector<BatchTransform> transforms{
      random_crop({.height = 8, .width = 8, .padding = 2, .fill = -1}),
      random_horizontal_flip(),
      random_rotation({.degrees = 30}),
      random_erasing({.fill = 5}),
      normalize({1, 2, 3}, {4, 5, 6}),
      mixup({.alpha = 0.5, .classes = 5})};
  const Batch whole = transformed(transforms, first_samples(20));
  for (const std::size_t i : {0u, 7u, 19u}) {
    const Batch alone = transformed(transforms, {i});
    const auto row = static_cast<std::int64_t>(i);
    EXPECT_TRUE(alone.data[0].equal(whole.data[row])) << i;
    EXPECT_TRUE(alone.target[0].equal(whole.target[row])) << i;
  }
  EXPECT_FALSE(transformed(transforms, {7}, 1).data[0].equal(whole.data[7]));  // another epoch
}

TEST(BatchTransforms, DrawAnewAtEachPlaceOfTheList) {
  const auto flip = random_horizontal_flip();
  const Batch once = transformed({flip}, first_samples(40));
  const Batch twice = transformed({flip, flip}, first_samples(40));
  const Batch untouched = batch_of(first_samples(40));
  EXPECT_FALSE(once.data.equal(untouched.data));
  EXPECT_FALSE(twice.data.equal(untouched.data));  // as it would be with the same draws
}

TEST(BatchTransforms, RandomCropCutsEveryRectangle) {
  const auto crop = random_crop({.height = 9, .width = 7, .padding = 1, .fill = -1});
  const auto padded = torch::constant_pad_nd(batch_of(first_samples(200)).data, {1, 1, 1, 1}, -1);
  const at::Tensor cropped = transformed({crop}, first_samples(200)).data;
  std::set<std::pair<std::int64_t, std::int64_t>> seen;
  for (std::int64_t i = 0; i < 200; ++i) {
    for (std::int64_t top = 0; top < 3; ++top) {
      for (std::int64_t left = 0; left < 3; ++left) {
        if (cropped[i].equal(padded[i].narrow(1, top, 9).narrow(2, left, 7))) {
          seen.emplace(top, left);
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 9u);
  const auto small = random_crop({.height = 2, .width = 3});
  EXPECT_EQ(transformed({small}, {1, 2}).data.sizes(), (std::vector<std::int64_t>{2, 3, 2, 3}));
}

TEST(BatchTransforms, HorizontalFlipMirrorsAboutHalf) {
  const at::Tensor images = batch_of(first_samples(400)).data;
  const at::Tensor flipped = transformed({random_horizontal_flip()}, first_samples(400)).data;
  int count = 0;
  for (std::int64_t i = 0; i < 400; ++i) {
    if (flipped[i].equal(images[i])) continue;
    ASSERT_TRUE(flipped[i].equal(images[i].flip({2})));
    ++count;
  }
  EXPECT_GT(count, 150);
  EXPECT_LT(count, 250);
  EXPECT_TRUE(transformed({random_horizontal_flip(0)}, {3}).data[0].equal(image(3)));
  EXPECT_TRUE(transformed({random_horizontal_flip(1)}, {3}).data[0].equal(image(3).flip({2})));
}

TEST(BatchTransforms, RotationEqualsGridSampler) {
  const auto square = torch::rand({2, 3, 8, 8});
  const Samples samples{11, 12};
  Batch batch{square.clone(), {}};
  apply_transforms({random_rotation({.degrees = 90})}, batch, origin_of(samples));
  for (std::int64_t i = 0; i < 2; ++i) {
    const double degrees =
        SampleRandom(7, 0, samples[static_cast<std::size_t>(i)], 0).uniform(-90, 90);
    const double angle = degrees * 3.14159265358979 / 180;
    const auto matrix = torch::tensor({std::cos(angle), -std::sin(angle), 0.0,  //
                                       std::sin(angle), std::cos(angle), 0.0})
                            .to(torch::kFloat)
                            .reshape({1, 2, 3});
    const auto grid = at::affine_grid_generator(matrix, {1, 3, 8, 8}, false);
    const auto expected = at::grid_sampler(square.narrow(0, i, 1), grid, 0, 0, false)[0];
    EXPECT_TRUE(batch.data[i].allclose(expected, 1e-4, 1e-5)) << degrees;
  }
  EXPECT_TRUE(transformed({random_rotation({.degrees = 0})}, {5}).data[0].equal(image(5)));
}

TEST(BatchTransforms, ErasingFillsARectangleOfTheArea) {
  const auto erase =
      random_erasing({.probability = 1, .least_area = 0.1, .most_area = 0.4, .fill = -1});
  const at::Tensor erased = transformed({erase}, first_samples(50)).data;
  for (std::int64_t i = 0; i < 50; ++i) {
    const at::Tensor mask = erased[i].eq(-1);
    ASSERT_TRUE(mask[0].equal(mask[2]));
    const auto rows = mask[0].any(1).sum().item<std::int64_t>();
    const auto columns = mask[0].any(0).sum().item<std::int64_t>();
    const auto pixels = mask[0].sum().item<std::int64_t>();
    EXPECT_EQ(pixels, rows * columns);
    EXPECT_GE(pixels, 3);
    EXPECT_LE(pixels, 32);
    EXPECT_TRUE(erased[i].masked_select(~mask).equal(
        image(static_cast<std::size_t>(i)).masked_select(~mask)));
  }
  EXPECT_TRUE(transformed({random_erasing({.probability = 0})}, {2}).data[0].equal(image(2)));
}

TEST(BatchTransforms, NormalizesEachChannel) {
  const at::Tensor result = transformed({normalize({1, 2, 3}, {4, 5, 8})}, {6}).data[0];
  const auto mean = torch::tensor({1.F, 2.F, 3.F}).reshape({3, 1, 1});
  const auto deviation = torch::tensor({4.F, 5.F, 8.F}).reshape({3, 1, 1});
  EXPECT_TRUE(result.equal((image(6) - mean) / deviation));
}

TEST(BatchTransforms, MixupMixesWithASampleOfTheWholeDataSet) {
  const Samples samples = first_samples(60);
  const Batch mixed =
      transformed({normalize({0, 0, 0}, {2, 2, 2}), mixup({.alpha = 1, .classes = 5})}, samples);
  EXPECT_EQ(mixed.target.sizes(), (std::vector<std::int64_t>{60, 5}));
  EXPECT_TRUE(mixed.target.sum(1).allclose(torch::ones({60})));
  double sum = 0;
  for (std::size_t i = 0; i < 60; ++i) {
    SampleRandom random(7, 0, i, 1);
    const auto partner = static_cast<std::size_t>(random.below(100));
    // The two samples differ by a constant, (partner - i) * 1000 / 2 after normalization.
    const auto row = static_cast<std::int64_t>(i);
    const double shift = (mixed.data[row] - image(i) / 2).mean().item<double>();
    if (partner == i) continue;
    const double weight =
        1 - shift / (500 * (static_cast<double>(partner) - static_cast<double>(i)));
    sum += weight;
    ASSERT_GE(weight, -1e-4);
    ASSERT_LE(weight, 1 + 1e-4);
    if (partner % 5 != i % 5) {
      EXPECT_NEAR(mixed.target[row][static_cast<std::int64_t>(i % 5)].item<double>(), weight, 1e-3);
    }
  }
  EXPECT_NEAR(sum / 60, 0.5, 0.15);
  const Batch extreme = transformed({mixup({.alpha = 1e-8, .classes = 5})}, samples);
  EXPECT_TRUE(extreme.data.isfinite().all().item<bool>());
}

TEST(BatchTransforms, RefuseOptionsOutOfRange) {
  expect_transform_refused([] { random_crop({.height = 4}); }, "height is 4, width 0");
  expect_transform_refused([] { random_crop({.height = 4, .width = 4, .padding = -1}); },
                           "padding -1");
  expect_transform_refused([] { random_horizontal_flip(1.5); }, "the probability is 1.5");
  expect_transform_refused([] { random_rotation({.degrees = 181}); }, "degrees is 181");
  expect_transform_refused([] { random_erasing({.least_area = 0.5, .most_area = 0.2}); },
                           "area 0.5 to 0.2");
  expect_transform_refused([] { normalize({1, 2}, {1}); }, "2 means and 1 deviations");
  expect_transform_refused([] { normalize({1}, {0}); }, "positive deviations");
  expect_transform_refused([] { mixup({.alpha = 0, .classes = 2}); }, "alpha is 0");
  expect_transform_refused([] { mixup({}); }, "classes 0");
}

TEST(BatchTransforms, RefuseBatchesThatAreNotImages) {
  const auto refuse = [](const BatchTransform& transform, Batch batch, const Samples& samples,
                         const std::string& text) {
    expect_transform_refused([&] { apply_transforms({transform}, batch, origin_of(samples)); },
                             text);
  };
  const auto flip = random_horizontal_flip();
  refuse(flip, {torch::zeros({2, 3, 4}), {}}, {0, 1}, "Float [2, 3, 4] on cpu");
  refuse(flip, {torch::zeros({2, 3, 4, 4}, torch::kByte), {}}, {0, 1}, "Byte [2, 3, 4, 4]");
  refuse(flip, {{}, {}}, {0, 1}, "the batch is empty");
  refuse(flip, {torch::zeros({2, 3, 4, 4}), {}}, {0}, "2 images, but its origin names 1 samples");
  refuse(random_crop({.height = 9, .width = 8}), batch_of(Samples{1}), {1},
         "images of 9 x 7 with a padding of 0 are smaller than 9 x 8");
  refuse(normalize({1}, {1}), batch_of(Samples{1}), {1}, "3 channels, but 1 means");
  refuse(mixup({.classes = 4}), batch_of(Samples{4}), {4}, "a target is 4, but .classes is 4");
  refuse(mixup({.classes = 5}), {image(1).unsqueeze(0), torch::zeros({1})}, {1}, "int64 targets");
  Batch batch = batch_of(Samples{1});
  const Samples samples{1};
  expect_transform_refused(
      [&] { apply_transforms({mixup({.classes = 5})}, batch, {.samples = samples}); },
      "the origin has no .load");
}

}  // namespace
}  // namespace lockstep
