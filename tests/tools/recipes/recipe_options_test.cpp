// SPDX-License-Identifier: BSD-3-Clause
// The checks of a recipe's options, and the batch sizes that follow from them.
#include "tools/recipes/recipe_options.h"

#include <filesystem>

#include "support/temporary_folder.h"
#include <gmock/gmock.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(BatchSizes, FollowFromWhatIsGiven) {
  EXPECT_EQ(resolve_batch_sizes({}, {}, 128, 2).global, 256);
  EXPECT_EQ(resolve_batch_sizes(10, {}, 128, 3).rank, 10);
  EXPECT_EQ(resolve_batch_sizes(10, {}, 128, 3).global, 30);
  EXPECT_EQ(resolve_batch_sizes({}, 300, 128, 3).rank, 100);
  EXPECT_EQ(resolve_batch_sizes({}, 300, 128, 3).global, 300);
}

TEST(BatchSizes, RefuseWhatCannotBe) {
  EXPECT_THAT([] { resolve_batch_sizes(5, 10, 128, 2); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("(5)"), HasSubstr("(10)"))));
  EXPECT_THAT(
      [] { resolve_batch_sizes({}, 100, 128, 3); },
      ThrowsMessage<UsageError>(HasSubstr("100 is not a multiple of the number of ranks, 3")));
  EXPECT_THROW(resolve_batch_sizes({}, 0, 128, 3), UsageError);
  EXPECT_THROW(resolve_batch_sizes({}, -3, 128, 3), UsageError);
  EXPECT_THAT([] { resolve_batch_sizes(0, {}, 128, 3); },
              ThrowsMessage<UsageError>(HasSubstr("batch size 0 is not positive")));
}

TEST(CheckRecipeOptions, NamesWhatCannotBe) {
  const auto check = [](const Recipe& recipe, const RecipeOptions& options) {
    return [recipe, options] { check_recipe_options(recipe, options, 2); };
  };
  EXPECT_THAT(check(linear_recipe(), {.epochs = 0}),
              ThrowsMessage<UsageError>(HasSubstr("epochs 0: give a whole number from 1 to")));
  EXPECT_THAT(
      check(linear_recipe(), {.trainer = {.check_in_sync = -1}}),
      ThrowsMessage<UsageError>(HasSubstr("check_in_sync -1: give a whole number from 1 to")));
  const DistributedDataParallelOptions one_copy{.one_copy_per_host = true};
  EXPECT_THAT(
      check(linear_recipe(), {.trainer = {.mode = TrainingMode::single, .distributed = one_copy}}),
      ThrowsMessage<UsageError>(HasSubstr("single training is one process")));
  EXPECT_THAT(check(linear_recipe(), {.trainer = {.check_in_sync = 1, .distributed = one_copy}}),
              ThrowsMessage<UsageError>(HasSubstr("leave out the one copy")));
  EXPECT_THAT(check(linear_recipe(), {.learning_rate = -1}),
              ThrowsMessage<UsageError>(HasSubstr("learning rate -1: give a number from 1e-30")));
  EXPECT_THAT(check(linear_recipe(), {.learning_rate = 1e308}),
              ThrowsMessage<UsageError>(HasSubstr("learning rate 1e+308: give a number")));
  EXPECT_THAT(check(linear_recipe(), {.data_folder = "/tmp"}),
              ThrowsMessage<UsageError>(HasSubstr("makes its own data")));
  EXPECT_THAT(check(mlp_recipe(), {.data_folder = "/absent"}),
              ThrowsMessage<UsageError>(HasSubstr("/absent: there is no such data folder")));
  EXPECT_THAT(check(linear_recipe(), {.global_batch_size = 3}),
              ThrowsMessage<UsageError>(HasSubstr("the number of ranks, 2")));
  EXPECT_THAT(check(linear_recipe(), {.save_file = "net.onnx"}),
              ThrowsMessage<UsageError>(HasSubstr("no format is known by the extension .onnx")));
  EXPECT_THAT(check(linear_recipe(), {.curriculum = Curriculum{}}),
              ThrowsMessage<UsageError>(HasSubstr("no images to sort by difficulty")));
  EXPECT_THAT(check(mlp_recipe(), {.curriculum = Curriculum{.start_share = 0}}),
              ThrowsMessage<UsageError>(HasSubstr("share at the start 0: give a number")));
  EXPECT_THAT(check(mlp_recipe(), {.recompute = true}),
              ThrowsMessage<UsageError>(HasSubstr("recipe mlp has no blocks")));
  EXPECT_THAT(check(char_transformer_recipe(), {.data_folder = "/absent"}),
              ThrowsMessage<UsageError>(HasSubstr("/absent: there is no such file")));
  EXPECT_THAT(check(char_transformer_recipe(),
                    {.data_folder = "/proc/self/exe", .curriculum = Curriculum{}}),
              ThrowsMessage<UsageError>(
                  HasSubstr("recipe char-transformer has no images to sort by difficulty")));
  EXPECT_THAT([] { find_recipe("resnet"); },
              ThrowsMessage<UsageError>(HasSubstr(
                  "\"resnet\"; choose one of linear, mlp, cnn, resnet18, char-transformer")));
}

TEST(CheckRecipeOptions, LooksForImagesInFilesOrInMnistsFormat) {
  const testing::TemporaryFolder folder;
  RecipeOptions options{.data_folder = folder.path() / "absent", .image_size = 32};
  const auto check = [&] { check_recipe_options(resnet18_recipe(), options, 2); };
  EXPECT_THAT(check, ThrowsMessage<UsageError>(
                         AllOf(HasSubstr("/absent: there is no such data folder"),
                               HasSubstr("a folder with subfolders train and val, which"))));
  folder.write("a.jpg", "");
  options.data_folder = folder.path() / "a.jpg";
  EXPECT_THAT(check, ThrowsMessage<UsageError>(HasSubstr("/a.jpg: this is a file, not a folder")));
  options.data_folder = folder.path();
  EXPECT_FALSE(reads_image_files(resnet18_recipe(), options));
  EXPECT_THAT(check, ThrowsMessage<UsageError>(
                         HasSubstr("the folder has neither subfolders train and val, with a ")));
  options.image_size.reset();
  folder.write("train-images-idx3-ubyte", "");
  EXPECT_NO_THROW(check());
  options.workers = 1;
  EXPECT_THAT(check, ThrowsMessage<UsageError>(HasSubstr("recipe resnet18 reads no image files")));

  std::filesystem::create_directory(folder.path() / "train");
  EXPECT_TRUE(reads_image_files(resnet18_recipe(), options));
  EXPECT_FALSE(reads_image_files(mlp_recipe(), options));
  EXPECT_THAT(check, ThrowsMessage<UsageError>(HasSubstr("there is no folder val; put a ")));
  std::filesystem::create_directory(folder.path() / "val");
  EXPECT_NO_THROW(check());
  options.image_size = 4;
  EXPECT_THAT(check, ThrowsMessage<UsageError>(HasSubstr("image size 4: give a whole number")));
  options.image_size = 32;
  options.curriculum = Curriculum{};
  EXPECT_THAT(check, ThrowsMessage<UsageError>(HasSubstr("only if they are in MNIST's format")));
}

}  // namespace
}  // namespace lockstep
