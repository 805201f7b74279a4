// SPDX-License-Identifier: BSD-3-Clause
// Classes and files in torchvision's order, sizes, and damaged files that are refused or skipped.
#include "lockstep/data/image_folder.h"

#include "data/image_bytes.h"
#include "support/captured_warnings.h"
#include "support/temporary_folder.h"
#include <gmock/gmock.h>
#include <torch/types.h>

#include "lockstep/core/error.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/distributed_sampler.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::CapturedWarnings;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::jpeg_bytes;
using testing::png_bytes;
using testing::TemporaryFolder;
using ::testing::ThrowsMessage;

// An image of one pixel, which is grey.
std::string dot(char value) {
  return png_bytes(1, {std::string(3, value)});
}

int value_of(const at::Tensor& image) {
  return static_cast<int>(std::lround(image[0][0][0].item<double>() * 255));
}

void make_folders(const TemporaryFolder& folder, const std::vector<std::string>& names) {
  for (const auto& name : names) std::filesystem::create_directories(folder.path() / name);
}

// Python: ImageFolder(root).samples of the same files.
TEST(ImageFolder, OrdersClassesAndFilesAsTorchvision) {
  const TemporaryFolder folder;
  make_folders(folder, {"cat/b/c", "cat/a", "Dog", "\xc3\xa9lan"});
  folder.write("cat/x.PNG", dot(1));
  folder.write("cat/a/z.png", dot(2));
  folder.write("cat/b/c/a.png", dot(3));
  folder.write("cat/b/y.jpeg", dot(4));  // the content decides
  folder.write("cat/b/notes.txt", "no image");
  folder.write("Dog/10.png", dot(5));
  folder.write("Dog/9.png", dot(6));
  folder.write("\xc3\xa9lan/1.png", dot(7));
  folder.write("stray.png", dot(8));
  ImageFolder images(folder.path());
  EXPECT_THAT(images.classes(), ElementsAre("Dog", "cat", "\xc3\xa9lan"));
  std::vector<int> values;
  std::vector<std::int64_t> classes;
  for (std::size_t i = 0; i < *images.size(); ++i) {
    const auto sample = images.get(i);
    EXPECT_EQ(sample.data.sizes(), (std::vector<std::int64_t>{3, 1, 1}));
    values.push_back(value_of(sample.data));
    classes.push_back(sample.target.item<std::int64_t>());
  }
  EXPECT_THAT(values, ElementsAre(5, 6, 1, 2, 4, 3, 7));
  EXPECT_THAT(classes, ElementsAre(0, 0, 1, 1, 1, 1, 2));
  EXPECT_EQ(images.path(4), folder.path() / "cat/b/y.jpeg");
}

TEST(ImageFolder, FollowsLinksToClassesAndFiles) {
  const TemporaryFolder folder;
  make_folders(folder, {"all/cat", "some"});
  folder.write("all/cat/1.png", dot(1));
  std::filesystem::create_directory_symlink("../all/cat", folder.path() / "some/cat");
  std::filesystem::create_symlink("1.png", folder.path() / "all/cat/2.png");
  std::filesystem::create_directory_symlink("..", folder.path() / "all/cat/round");
  std::filesystem::create_symlink("absent", folder.path() / "all/cat/3.png");
  EXPECT_EQ(ImageFolder(folder.path() / "some").size(), 2u);
}

TEST(ImageFolder, ScalesTheMiddleToOneSize) {
  const TemporaryFolder folder;
  make_folders(folder, {"a"});
  // Columns 0 and 3 are cut off.
  const std::string row{'\0', '\0', '\0', 20, 20, 20, 40, 40, 40, '\x7f', '\x7f', '\x7f'};
  folder.write("a/1.png", png_bytes(4, {row, row}));
  folder.write("a/2.jpg", jpeg_bytes(30, 50));
  folder.write("a/3.png", png_bytes(1, {std::string(3, 9)}));
  ImageFolder images(folder.path(), {.height = 2, .width = 2});
  const auto first = images.get(0).data;
  EXPECT_TRUE(first[1].mul(255).allclose(torch::tensor({{20.F, 40.F}, {20.F, 40.F}})));
  DataLoader loader(images, DistributedSampler(images, 1, 0), {.batch_size = 3});
  const auto batch = *loader.begin();
  EXPECT_EQ(batch.data.sizes(), (std::vector<std::int64_t>{3, 3, 2, 2}));
  EXPECT_TRUE(batch.data.ge(0).logical_and(batch.data.le(1)).all().item<bool>());
}

TEST(ImageFolder, RefusesDamagedFilesOrSkipsThem) {
  const TemporaryFolder folder;
  make_folders(folder, {"a", "b", "c"});
  folder.write("a/1.png", dot(1));
  folder.write("a/2.png", dot(2).substr(0, 60));
  folder.write("a/3.png", "");
  folder.write("b/1.png", dot(4));
  folder.write("c/1.png", "GIF89a");
  ImageFolder refusing(folder.path());
  EXPECT_EQ(value_of(refusing.get(0).data), 1);
  EXPECT_THAT([&] { refusing.get(1); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("/a/2.png: the PNG image is damaged"),
                                              HasSubstr("copy or download"))));
  ImageFolder skipping(folder.path(), {.damaged = DamagedImages::skip});
  ImageFolder copy = skipping;
  const CapturedWarnings warnings;
  for (const std::size_t i : {0u, 1u, 2u}) EXPECT_EQ(value_of(copy.get(i).data), 1) << i;
  EXPECT_EQ(skipping.get(1).target.item<std::int64_t>(), 0);
  EXPECT_EQ(value_of(skipping.get(3).data), 4);
  ASSERT_EQ(warnings.messages().size(), 2u);
  EXPECT_THAT(warnings.messages()[0], AllOf(HasSubstr("/a/2.png"), HasSubstr("It is skipped")));
  EXPECT_THAT(warnings.messages()[1], HasSubstr("/a/3.png: the file is empty"));
  EXPECT_THAT([&] { skipping.get(4); },
              ThrowsMessage<UsageError>(HasSubstr("/c: no image of this class can be read")));
}

TEST(ImageFolder, NamesWhatIsMissing) {
  const TemporaryFolder folder;
  EXPECT_THAT([&] { ImageFolder(folder.path() / "absent"); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("/absent: there is no such data folder"),
                                              HasSubstr("a subfolder of JPEG or PNG files"))));
  folder.write("1.png", dot(1));
  EXPECT_THAT([&] { ImageFolder(folder.path()); },
              ThrowsMessage<UsageError>(HasSubstr("the folder has no subfolders")));
  make_folders(folder, {"a"});
  EXPECT_THAT([&] { ImageFolder(folder.path()); },
              ThrowsMessage<UsageError>(HasSubstr("/a: this class has no .jpg, .jpeg or .png")));
  folder.write("a/1.png", dot(1));
  EXPECT_THAT([&] { ImageFolder(folder.path(), {.height = 4}); },
              ThrowsMessage<UsageError>(HasSubstr("height is 4 and width 0")));
  EXPECT_THAT([&] { ImageFolder(folder.path()).get(1); },
              ThrowsMessage<UsageError>(HasSubstr("there is no sample 1; there are 1")));
}

}  // namespace
}  // namespace lockstep
