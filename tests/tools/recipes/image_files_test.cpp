// SPDX-License-Identifier: BSD-3-Clause
// The recipe resnet18 on folders of PNG files: what is loaded and refused, and that the batches do
// not depend on ranks and workers.
#include <algorithm>
#include <array>
#include <filesystem>
#include <variant>

#include "data/image_bytes.h"
#include "support/temporary_folder.h"
#include <gmock/gmock.h>
#include <torch/types.h>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/core/file/remove_folder.h"
#include "lockstep/launch/spawn.h"
#include "tools/recipes/recipe_data.h"
#include "tools/recipes/train.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TemporaryFolder;
using ::testing::ThrowsMessage;

constexpr std::array kColours{"blue", "green", "red"};

// An image of 20 x 20 pixels. `colour` is a position in kColours.
std::string image_of(std::size_t colour, int brightness) {
  std::string pixel(3, '\x10');
  pixel[2 - colour] = static_cast<char>(brightness);
  std::string row;
  for (int i = 0; i < 20; ++i) row += pixel;
  return testing::png_bytes(20, std::vector<std::string>(20, row));
}

// Writes a class for each colour, with images of brightness 100, 101 and so on.
void write_colours(const TemporaryFolder& folder, const std::string& split, int images) {
  for (std::size_t colour = 0; colour < kColours.size(); ++colour) {
    const std::string name = split + "/" + kColours[colour];
    std::filesystem::create_directories(folder.path() / name);
    for (int i = 0; i < images; ++i) {
      folder.write(name + "/" + std::to_string(100 + i) + ".png", image_of(colour, 100 + i));
    }
  }
}

std::shared_ptr<ProcessGroup> group_on_cpu() {
  InitOptions options;
  options.device = at::Device(at::kCPU);
  return init_process_group(options);
}

TEST(ImageFiles, GetOneSizeAndTheStatisticsOfImagenet) {
  const TemporaryFolder folder;
  write_colours(folder, "train", 2);
  write_colours(folder, "val", 1);
  const TrainingData data = load_image_files(folder.path(), 16, *group_on_cpu());
  EXPECT_EQ(data.size(), 6);
  EXPECT_EQ(data.test_size(), 3);
  EXPECT_THAT(data.files->train.classes(), ElementsAre("blue", "green", "red"));
  EXPECT_EQ(data.statistics.at(1).tensor.sizes(), at::IntArrayRef({3}));

  const DistributedSampler sampler(3, 1, 0, {.shuffle = false});
  RecipeLoader loader = test_loader(data, sampler, {.batch_size = 3, .workers = 0});
  auto batch = std::get<DataLoader>(loader).begin();
  EXPECT_EQ(batch->data.sizes(), at::IntArrayRef({3, 3, 16, 16}));
  EXPECT_TRUE(batch->target.equal(torch::tensor({0, 1, 2}, torch::kLong)));
  const at::Tensor red = batch->data[2][0];
  EXPECT_NEAR(red.min().item<double>(), (100 / 255.0 - 0.485) / 0.229, 1e-5);
  EXPECT_NEAR(red.max().item<double>(), (100 / 255.0 - 0.485) / 0.229, 1e-5);
}

TEST(ImageFiles, RefuseAClassThatOneSplitLacks) {
  const TemporaryFolder folder;
  write_colours(folder, "train", 1);
  write_colours(folder, "val", 1);
  std::filesystem::rename(folder.path() / "val" / "green", folder.path() / "val" / "grey");
  EXPECT_THAT([&] { load_image_files(folder.path(), 16, *group_on_cpu()); },
              ThrowsMessage<UsageError>(AllOf(
                  HasSubstr(folder.path().string()),
                  HasSubstr("class \"green\" is in train, but not in val; give both the same"))));
}

TEST(ImageFiles, RefuseRanksWithOtherFiles) {
  const TemporaryFolder first;
  const TemporaryFolder second;
  for (const TemporaryFolder* folder : {&first, &second}) {
    write_colours(*folder, "train", 2);
    write_colours(*folder, "val", 1);
  }
  const auto load_both = [&] {
    spawn(2,
          [&](int rank) {
            load_image_files((rank == 0 ? first : second).path(), 16, *group_on_cpu());
          },
          {.threads = 1, .prefix = false});
  };
  EXPECT_NO_THROW(load_both());
  const auto expect_refused = [&](const std::string& message) {
    EXPECT_THAT(load_both, ThrowsMessage<RankFailed>(
                               HasSubstr(message + "; give all machines the same files")));
  };
  second.write("val/red/more.png", image_of(0, 0));
  expect_refused("rank 0 has 3 images in val where rank 1 has 4 images in val");
  for (const std::string split : {"train", "val"}) {
    std::filesystem::rename(second.path() / split / "green", second.path() / split / "grey");
  }
  expect_refused("rank 0 has class \"green\" where rank 1 has class \"grey\"");
  for (const std::string split : {"train", "val"}) {
    ASSERT_FALSE(remove_folder(second.path() / split / "grey"));
  }
  expect_refused("rank 0 has 3 classes where rank 1 has 2 classes");
}

TrainResult train_resnet(int ranks, const RecipeOptions& options) {
  const auto results = spawn(ranks,
                             [&](int) {
                               return to_json(train(resnet18_recipe(), options, group_on_cpu(),
                                                    [](const std::string&) {}));
                             },
                             {.threads = 1, .prefix = false});
  return train_result_from_json(results.front());
}

TEST(ImageFiles, TrainTheSameOnAnyNumberOfRanksAndWorkers) {
  const TemporaryFolder folder;
  write_colours(folder, "train", 20);
  write_colours(folder, "val", 5);
  RecipeOptions options{.epochs = 1,
                        .global_batch_size = 20,
                        .data_folder = folder.path(),
                        .image_size = 16,
                        .workers = 0,
                        .seed = 5,
                        .save_file = folder.path() / "net.safetensors"};
  const TrainResult single = train_resnet(1, options);
  ASSERT_EQ(single.losses.size(), 3u);
  EXPECT_TRUE(single.accuracy.has_value());
  const auto saved = read_safetensors(*options.save_file).tensors;
  const auto sizes_of = [&](const std::string& name) {
    return std::ranges::find(saved, name, &NamedTensor::name)->tensor.sizes().vec();
  };
  EXPECT_THAT(sizes_of("conv1.weight"), ElementsAre(64, 3, 7, 7));
  EXPECT_THAT(sizes_of("fc.weight"), ElementsAre(3, 512));
  EXPECT_THAT(sizes_of("standardization.mean"), ElementsAre(3));

  options.workers = 3;
  EXPECT_EQ(train_resnet(1, options).loss, single.loss);
  const TrainResult ddp = train_resnet(2, options);
  EXPECT_NEAR(ddp.losses[0].loss, single.losses[0].loss, 1e-4);
  EXPECT_NEAR(ddp.losses[2].loss, single.losses[2].loss, 0.05);
}

// The random crops and flips of a sample are those of the sample in the epoch.
TEST(ImageFiles, InMicrobatchesGiveTheSameBitsOnAnyNumberOfRanksAndWorkers) {
  const TemporaryFolder folder;
  write_colours(folder, "train", 8);
  write_colours(folder, "val", 1);
  RecipeOptions options{.epochs = 1,
                        .batch_size = 3,
                        .data_folder = folder.path(),
                        .image_size = 40,
                        .workers = 0,
                        .seed = 5};
  options.trainer.microbatches = 4;
  const std::string hash = train_resnet(1, options).sha256;
  EXPECT_EQ(hash.size(), 64U);
  options.workers = 2;
  options.trainer.mode = TrainingMode::distributed;
  for (const int ranks : {1, 2, 3}) {
    EXPECT_EQ(train_resnet(ranks, options).sha256, hash) << ranks << " ranks";
  }
  options.trainer.mode = TrainingMode::data_parallel;
  options.trainer.data_parallel.replicas = 2;
  EXPECT_EQ(train_resnet(1, options).sha256, hash) << "2 replicas";
}

}  // namespace
}  // namespace lockstep
