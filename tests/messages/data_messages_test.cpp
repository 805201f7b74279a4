// SPDX-License-Identifier: BSD-3-Clause
// The full text of what samplers, loaders, transforms and readers of data sets say about wrong
// options and damaged files.
#include <chrono>
#include <filesystem>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "tests/messages/golden.h"
#include "tests/support/temporary_folder.h"
#include <gtest/gtest.h>
#include <torch/data/datasets/base.h>
#include <torch/types.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/data/batch_transforms.h"
#include "lockstep/data/cifar_dataset.h"
#include "lockstep/data/csv_dataset.h"
#include "lockstep/data/curriculum_sampler.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/distributed_weighted_sampler.h"
#include "lockstep/data/idx_file.h"
#include "lockstep/data/image_file.h"
#include "lockstep/data/image_folder.h"
#include "lockstep/data/linear_dataset.h"
#include "lockstep/data/memory_loader.h"
#include "lockstep/data/microbatch_plan.h"
#include "lockstep/data/mnist_dataset.h"
#include "lockstep/data/sharding_filter.h"
#include "lockstep/data/standardization.h"
#include "lockstep/data/token_dataset.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using namespace std::string_literals;

// Samplers.

struct Endless : torch::data::datasets::Dataset<Endless> {
  torch::data::Example<> get(std::size_t /*index*/) override { return {}; }
  c10::optional<std::size_t> size() const override { return c10::nullopt; }
};

TEST(DataMessages, ASamplerOfSamplesInAnyOrder) {
  const auto resume = [](const DataCursor& cursor) {
    return [cursor] { DistributedSampler(50, 2, 1, {.seed = 7}).resume(cursor); };
  };
  expect_messages(
      "[DistributedSampler] rank 1 of 2: ",
      {{resume({.seed = 8, .samples = 50}),
        "the checkpoint's seed is 8, but the sampler's is 7; use the seed 8"},
       {resume({.seed = 7, .samples = 51}),
        "the checkpoint's number of samples is 51, but the sampler's is 50; use the data that the "
        "checkpoint was trained on"},
       {resume({.seed = 7, .epoch = 3, .samples_consumed = 51, .samples = 50}),
        "a cursor at sample 51 of 50 of epoch 3; give one that cursor_after() made"},
       {[] { DistributedSampler(50, 2, 1).next(0); },
        "a batch of 0 samples was asked for; use a batch size of at least 1"},
       {[] {
          DistributedSampler(50, 2, 1, {.drop_last = true})
              .deal_microbatches(MicrobatchPlan{.microbatches = 2, .size = 4});
        },
        "microbatches are dealt without padding, so nothing is dropped; leave out .drop_last"}});
  expect_messages(
      "", {{[] { DistributedSampler(Endless(), 2, 1); },
            "the data set has no size, and a sampler needs one; give the number of samples "
            "instead, or let each rank take its batches from the loader with a ShardingFilter"},
           {[] { ShardingFilter(std::vector<int>(8), 2, 2); },
            "[ShardingFilter] rank 2 of 2 replicas does not exist; give num_replicas >= 1 and 0 <= "
            "rank < num_replicas"}});
}

TEST(DataMessages, ASamplerWithWeights) {
  const auto draw = [](const at::Tensor& weights, std::int64_t samples = 2,
                       bool replacement = true) {
    return
        [=] { DistributedWeightedSampler(weights, samples, 2, 0, {.replacement = replacement}); };
  };
  expect_messages(
      "[DistributedWeightedSampler] rank 0 of 2: ",
      {{draw(at::Tensor()), "weights are undefined; give a tensor with one for each sample"},
       {draw(torch::ones({2}, torch::kMeta)),
        "weights are sparse, quantized or on the device meta; give an ordinary tensor, as "
        "to_dense() and dequantize() make it"},
       {draw(torch::ones({2, 2})),
        "weights of shape [2, 2] and type Float; give one real number for each sample, at most "
        "16777216, in a tensor of one dimension"},
       {draw(torch::tensor({1.0, -1.0})),
        "weight 1 of 2 is -1; weights must be finite and not negative"},
       {draw(torch::zeros({3})), "all 3 weights are 0; give one that is positive"},
       {draw(torch::full({2}, std::numeric_limits<double>::max(), torch::kDouble)),
        "the weights' sum is infinite; scale them down"},
       {draw(torch::ones({3}), 0), "num_samples is 0; give at least 1"},
       {draw(torch::tensor({1.0, 0.0}), 2, false),
        "2 samples were asked for without replacement, but 1 weights are positive; ask for no more "
        "than these, or set .replacement = true"},
       {[] { DistributedWeightedSampler(torch::ones({3}), 3, 2, 0).reset(5); },
        "a data set of 5 samples, but 3 weights; make a sampler with a weight for each sample"}});
}

TEST(DataMessages, ASamplerFromEasyToHard) {
  const auto sample = [](const CurriculumSamplerOptions& options,
                         const at::Tensor& scores = torch::zeros({8})) {
    return [=] { CurriculumSampler(8, scores, 2, 0, options); };
  };
  const CurriculumSamplerOptions valid{.global_batch_size = 4, .full_at_step = 10};
  expect_messages(
      "[CurriculumSampler] rank 0 of 2: ",
      {{sample({.global_batch_size = 0, .full_at_step = 10}),
        "global_batch_size is 0; give the samples of one step on all ranks together, at least 1"},
       {[] {
          CurriculumSampler(8, torch::zeros({8}), 2, 0, {.global_batch_size = 3, .full_at_step = 9})
              .next(3);
        },
        "global_batch_size is 3; give the samples of one step on all ranks together, a multiple of "
        "2"},
       {sample({.global_batch_size = 4}),
        "full_at_step is 0; give the number of steps until all samples are in, at least 1"},
       {sample({.global_batch_size = 4, .full_at_step = 10, .start_share = 0}),
        "start_share is 0; give a share above 0 and at most 1"},
       {sample({.global_batch_size = 4, .full_at_step = 10, .pacing = Pacing::steps, .stages = 0}),
        "stages is 0; give at least 1"},
       {sample(valid, at::Tensor()),
        "scores are undefined; give a tensor with one for each sample"},
       {sample(valid, torch::zeros({8, 1})),
        "scores of shape [8, 1] and type Float; give one real number for each sample, in an "
        "ordinary tensor of one dimension"},
       {sample(valid, torch::zeros({3})), "3 scores for 8 samples; give one for each"},
       {sample(valid, torch::full({8}, std::numeric_limits<double>::quiet_NaN())),
        "score 0 of 8 is nan; give each sample a number, such as infinity for the hardest"},
       {[valid] { CurriculumSampler(8, torch::zeros({8}), 2, 0, valid).next(3); },
        "a batch of 3 samples was asked for, but this rank's part of the global batch of 4 is 2; "
        "give the loader this batch size"},
       {[valid] { CurriculumSampler(8, torch::zeros({8}), 2, 0, valid).state_after(9); },
        "the state after 9 steps was asked for, but an epoch has 2"},
       {[valid] {
          CurriculumSampler(8, torch::zeros({8}), 2, 0, valid)
              .deal_microbatches(MicrobatchPlan{.microbatches = 2, .size = 4});
        },
        "2 microbatches of 4 samples are not a global_batch_size of 4; make the sampler with the "
        "product, or the loader with another batch size"}});
}

// Loaders and transforms.

struct Ragged : torch::data::datasets::Dataset<Ragged> {
  torch::data::Example<> get(std::size_t index) override {
    return {torch::zeros({static_cast<std::int64_t>(index) + 1}), torch::zeros({1})};
  }
  c10::optional<std::size_t> size() const override { return 2; }
};

TEST(DataMessages, Loaders) {
  const DistributedSampler four(4, 1, 0, {.shuffle = false});
  const DistributedSampler nine(9, 1, 0, {.shuffle = false});
  expect_messages(
      "",
      {{[&] {
          MemoryLoader(torch::ones({4, 2}), torch::ones({4}), four, {.batch_size = 0});
        },
        "[MemoryLoader] batch_size is 0; give at least 1"},
       {[&] {
          MemoryLoader(torch::ones({4, 2}), torch::ones({3}), four, {.batch_size = 2});
        },
        "[MemoryLoader] data of shape [4, 2] and target of shape [3] do not have the same number "
        "of rows; give one row per sample in both"},
       {[&] {
          MemoryLoader(torch::ones({4, 2}), torch::ones({4}), nine, {.batch_size = 8}).begin();
        },
        "[MemoryLoader] the sampler asks for sample 4 of 4; make it for the size of this data "
        "set"},
       {[&] { DataLoader(LinearDataset({.size = 4}), four, {.batch_size = 0, .timeout = 9ms}); },
        "DataLoader: batch_size is 0, workers 2, prefetch_factor 2 and timeout 9 ms; give a "
        "positive batch_size, prefetch_factor and timeout, and 0 to 1024 workers"},
       {[&] {
          DataLoader(LinearDataset({.size = 4}), nine, {.batch_size = 8, .workers = 0}).begin();
        },
        "[DataLoader] epoch 0, sample 4, rank 0 of 1: the data set has 4 samples; make the sampler "
        "for this data set"},
       {[&] {
          DataLoader(Ragged(), DistributedSampler(2, 1, 0, {.shuffle = false}),
                     {.batch_size = 2, .workers = 0})
              .begin();
        },
        "[DataLoader] rank 0 of 1: the data of sample 1 has another shape than the data of sample "
        "0 in its batch, which is [1]; give all samples one shape"},
       {[] { LinearDataset({.size = -1}); },
        "[LinearDataset] size -1 is negative; give at least 0 samples"}});
}

TEST(DataMessages, TransformsWithWrongOptions) {
  expect_messages(
      "",
      {{[] { random_crop({}); },
        "random_crop: height is 0, width 0 and padding 0; give a positive height and width, and a "
        "padding of at least 0"},
       {[] { random_horizontal_flip(1.5); },
        "random_horizontal_flip: the probability is 1.5; give 0 to 1"},
       {[] { random_rotation({.degrees = -1}); }, "random_rotation: degrees is -1; give 0 to 180"},
       {[] { random_erasing({.probability = 2}); },
        "random_erasing: probability is 2, the area 0.02 to 0.33 and the aspect 0.3 to 3.3; give a "
        "probability from 0 to 1, areas above 0 and up to 1, and positive aspects, the least "
        "first"},
       {[] { normalize({0.5}, {}); },
        "normalize: 1 means and 0 deviations; give one of both for each channel, and positive "
        "deviations"},
       {[] { mixup({}); }, "mixup: alpha is 0.2 and classes 0; give positive numbers"}});
}

TEST(DataMessages, TransformsOfOtherBatches) {
  const auto apply = [](const BatchTransform& transform, const at::Tensor& data,
                        std::size_t samples = 1, const at::Tensor& target = {}) {
    return [=] {
      torch::data::Example<> batch(data, target);
      std::vector<std::size_t> origin(samples);
      std::iota(origin.begin(), origin.end(), std::size_t{0});
      apply_transforms({transform}, batch, {.samples = origin});
    };
  };
  const at::Tensor image = torch::zeros({1, 3, 4, 4});
  expect_messages(
      "", {{apply(random_horizontal_flip(), image.to(torch::kByte)),
            "random_horizontal_flip: the batch is Byte [1, 3, 4, 4] on cpu; give images as float32 "
            "[N, C, H, W] on the CPU"},
           {apply(random_horizontal_flip(), at::Tensor()),
            "random_horizontal_flip: the batch is empty; give images as float32 [N, C, H, W] on "
            "the CPU"},
           {apply(random_rotation({.degrees = 9}), image, 2),
            "random_rotation: the batch has 1 images, but its origin names 2 samples; name one for "
            "each image"},
           {apply(random_crop({.height = 8, .width = 8}), image),
            "random_crop: images of 4 x 4 with a padding of 0 are smaller than 8 x 8; give larger "
            "images, or more padding"},
           {apply(normalize({0.5}, {0.5}), image),
            "normalize: the images have 3 channels, but 1 means are given; give one for each "
            "channel"},
           {apply(mixup({.classes = 2}), image),
            "mixup: give float32 data and int64 targets [N] on the CPU, and one sample of the "
            "origin for each row"},
           {apply(mixup({.classes = 2}), image, 1, torch::zeros({1}, torch::kLong)),
            "mixup: the origin has no .load and .dataset_size, but each sample is mixed with "
            "another one of the data set; set both, or use a DataLoader"}});
}

// Files.

TEST(DataMessages, TablesOfNumbers) {
  const TemporaryFolder folder;
  const auto read = [&](const std::string& text, const CsvDatasetOptions& options = {}) {
    return [&folder, text, options] {
      folder.write("table.csv", text);
      CsvDataset(folder.path() / "table.csv", options);
    };
  };
  expect_messages(
      "FOLDER/table.csv: ",
      {{read("a,b\n1,2\nx,4\n"),
        "line 3, column \"a\": \"x\" is not a number; give finite decimal numbers in each row"},
       {read("a,b\n1\n"), "line 2 has 1 fields, but the first line has 2"},
       {read("a,b\n1,2,3\n"), "line 2 has more than the 2 fields of the first line"},
       {read("a,b\n1,\"2\n"), "line 2: a quote is not closed before the end of the line"},
       {read("a,b\n1,\"2\"3\n"), "line 2: \"3\" follows a closing quote"},
       {read("a,b\n"), "the file has no rows"},
       {read("a,b\n1,2\n", {.targets = {"c"}}),
        "the target \"c\" is not one of its columns; name each target once, by its name in the "
        "header"},
       {read("1,2\n", {.targets = {"1", "1"}}),
        "the target \"1\" is named twice; name each target once, by its number from 0, as there is "
        "no header"},
       {read("a,b\n1,2\n", {.targets = {"a", "b"}, .classes = true}),
        ".classes needs one target, but 2 are named"},
       {read("a,b\n1,0.5\n", {.classes = true}),
        "the class of row 1 is 0.5; give whole numbers from 0, or leave out .classes"},
       {read("a,b\n1,2\n", {.delimiter = '"'}),
        "\"\\x22\" cannot be the delimiter; give a comma, a semicolon, a tab or the like"},
       {read("a\n1\n"), "every column is a target; no column is left as input"}});
  expect_messages(
      "", {{[] { CsvDataset("/no/such/table.csv"); }, "/no/such/table.csv: there is no such file"},
           {[&] { CsvDataset(folder.path()); }, "FOLDER: this is not a regular file"}});
}

TEST(DataMessages, FilesOfTokens) {
  const TemporaryFolder folder;
  const auto read = [&](const std::string& bytes, const TokenDatasetOptions& options,
                        std::size_t window = 0) {
    return [&folder, bytes, options, window] {
      folder.write("tokens.bin", bytes);
      TokenDataset(folder.path() / "tokens.bin", options).get(window);
    };
  };
  expect_messages(
      "FOLDER/tokens.bin: ",
      {{read("abc", {.window = 1}),
        "its 3 bytes are not a whole number of tokens of 2 bytes; copy the file again, or name its "
        "type (.type)"},
       {read("abcd", {.window = 4}),
        "it has 2 tokens, fewer than a window of 4 and the token that follows; name a longer file, "
        "or a smaller window"},
       {read("\1\0\7\0"s, {.window = 1, .vocabulary = 5}),
        "token 1 is 7, but the vocabulary has 5 tokens; give the vocabulary of the tokenizer that "
        "wrote the file, and check the type (.type)"},
       {read("abcd", {.window = 1}, 7), "there is no window 7; there are 1"}});
  expect_messages(
      "", {{read("abcd", {}),
            "TokenDataset: window is 0 and vocabulary 0; give a window of at least 1 token, and 0 "
            "or the number of tokens that the model knows"},
           {[] { TokenDataset("/no/such/tokens.bin", {.window = 1}); },
            "/no/such/tokens.bin: there is no such token file; write one with NumPy: "
            "np.array(tokens, dtype=np.uint16).tofile(name)"}});
}

TEST(DataMessages, FilesOfCifar) {
  const TemporaryFolder folder;
  const std::string source =
      "get the binary version, https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz, unpack it, "
      "and name the folder cifar-10-batches-bin";
  const auto read = [&](const std::string& bytes) {
    return [&folder, bytes] {
      folder.write("test_batch.bin", bytes);
      CifarDataset(folder.path(), CifarKind::cifar10, CifarSplit::test);
    };
  };
  expect_messages(
      "",
      {{[] { CifarDataset("/no/such/folder"); },
        "/no/such/folder: there is no such data folder; " + source},
       {[&] { CifarDataset(folder.path()); }, "FOLDER: there is no data_batch_1.bin; " + source},
       {read("small"),
        "FOLDER/test_batch.bin: its 5 bytes are not one or more records of 3073 bytes; copy or "
        "download the file again"},
       {read(std::string(3073, '\xff')),
        "FOLDER/test_batch.bin: the label of image 0 is 255, but there are 10 classes; copy or "
        "download the file again"},
       {[&] { CifarDataset(folder.path() / "test_batch.bin"); },
        "FOLDER/test_batch.bin: this is a file, not a folder of data; " + source}});
}

TEST(DataMessages, FilesOfMnist) {
  const TemporaryFolder folder;
  const std::string source =
      "install the package dataset-fashion-mnist and name /usr/share/datasets/fashion-mnist, or "
      "put the four files of MNIST (train-images-idx3-ubyte.gz and so on) into a folder and name "
      "that";
  expect_messages("", {{[] { MnistDataset("/no/such/folder"); },
                        "/no/such/folder: there is no such data folder; " + source},
                       {[&] { MnistDataset(folder.path()); },
                        "FOLDER: neither train-images-idx3-ubyte nor train-images-idx3-ubyte.gz is "
                        "there; " +
                            source}});
  const auto read = [](const std::string& bytes) {
    return [bytes] { IdxFile(std::as_bytes(std::span(bytes)), "digits").read(); };
  };
  expect_messages(
      "digits: ",
      {{read("abcd"),
        "not an IDX file of unsigned bytes: it begins with 61 62 63 64, instead of 00 00 08 and "
        "the number of dimensions"},
       {read("\0\0\x08\x09"s), "header declares 9 dimensions; 1 to 8 are supported"},
       {read("\0\0"s), "it ends within its magic number; copy or download the file again"},
       {read("\0\0\x08\x01"s), "it ends within its dimensions; copy or download the file again"},
       {read("\0\0\x08\x01\0\0\0\x09x"s),
        "its header announces 9 elements, more than the file can hold (1 bytes); copy or download "
        "the file again"},
       {read("\0\0\x08\x01\0\0\0\x01xyz"s),
        "2 bytes follow the end of the data that its header announces"},
       {read("\x1f\x8bxyz"),
        "the gzip data is damaged (unknown compression method); copy or download the file "
        "again"}});
}

TEST(DataMessages, FoldersOfImages) {
  const TemporaryFolder folder;
  const auto cats = folder.path() / "cats";
  const std::string source =
      "make one with a subfolder of JPEG or PNG files for each class, as ImageNet "
      "(https://image-net.org) has, or name the folder of the training images of such a data set";
  expect_messages(
      "", {{[] { ImageFolder("/no/such/folder", {.height = 5}); },
            "ImageFolder: height is 5 and width 0; give both, with at most 100000000 pixels "
            "together, or neither"},
           {[] { ImageFolder("/no/such/folder"); },
            "/no/such/folder: there is no such data folder; " + source},
           {[&] { ImageFolder(folder.path()); }, "FOLDER: the folder has no subfolders; " + source},
           {[&] {
              std::filesystem::create_directory(cats);
              ImageFolder(folder.path());
            },
            "FOLDER/cats: this class has no .jpg, .jpeg or .png file; add images, or remove the "
            "folder"},
           {[&] {
              folder.write("cats/tom.png", "no image");
              ImageFolder(folder.path()).get(0);
            },
            "FOLDER/cats/tom.png: this is neither a JPEG nor a PNG image"},
           {[&] { ImageFolder(folder.path()).get(5); },
            "ImageFolder: there is no sample 5; there are 1"},
           {[] { decode_image({}, "cat.jpg"); }, "cat.jpg: the file is empty"}});
}

TEST(DataMessages, Standardization) {
  const auto group = make_self_group();
  const double infinity = std::numeric_limits<double>::infinity();
  expect_messages(
      "", {{[&] {
              measure_standardization(torch::zeros({2, 2}), group);
            },
            "[measure_standardization] rank 0 of 1: images of type Float with 4 elements; give at "
            "least one uint8 image"},
           {[&] {
              measure_feature_standardization(torch::zeros({0, 2}), group);
            },
            "[measure_feature_standardization] rank 0 of 1: rows of type Float with 0 elements; "
            "give at least one row of real numbers"},
           {[&] {
              measure_feature_standardization(torch::full({2, 1}, infinity), group);
            },
            "[measure_feature_standardization] rank 0 of 1: feature 0 is infinite or NaN in some "
            "row, or too large to be summed up; remove or replace such values first"}});
}

}  // namespace
}  // namespace lockstep::testing
