// SPDX-License-Identifier: BSD-3-Clause
// MNIST's files, whole, missing and mismatched.
#include "lockstep/data/mnist_dataset.h"

#include "data/idx_bytes.h"
#include "support/temporary_folder.h"
#include <gmock/gmock.h>
#include <torch/types.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::gzip;
using ::testing::HasSubstr;
using testing::idx_bytes;
using testing::TemporaryFolder;
using ::testing::ThrowsMessage;

TEST(MnistDataset, ReadsBothSplitsRawOrGzip) {
  const TemporaryFolder folder;
  folder.write("train-images-idx3-ubyte", idx_bytes({5, 4, 3}, 1));
  folder.write("train-labels-idx1-ubyte.gz", gzip(idx_bytes({5}, 2, 10)));
  folder.write("t10k-images-idx3-ubyte.gz", gzip(idx_bytes({2, 4, 3}, 3)));
  folder.write("t10k-labels-idx1-ubyte", idx_bytes({2}, 4, 10));

  MnistDataset train(folder.path());
  EXPECT_EQ(train.size(), 5u);
  EXPECT_EQ(train.images().sizes(), (std::vector<std::int64_t>{5, 4, 3}));
  EXPECT_EQ(train.images().scalar_type(), torch::kByte);
  EXPECT_EQ(train.labels().scalar_type(), torch::kLong);
  const auto example = train.get(3);
  EXPECT_EQ(example.data.sizes(), (std::vector<std::int64_t>{1, 4, 3}));
  EXPECT_TRUE(example.data.equal(train.images()[3].to(torch::kFloat).unsqueeze(0) / 255));
  EXPECT_EQ(example.target.item<std::int64_t>(), train.labels()[3].item<std::int64_t>());

  EXPECT_EQ(MnistDataset(folder.path(), MnistSplit::test).size(), 2u);
}

TEST(MnistDataset, NamesWhatIsMissingAndTheWayOut) {
  const TemporaryFolder folder;
  EXPECT_THAT([&] { MnistDataset(folder.path() / "absent"); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("/absent: there is no such data folder"),
                                              HasSubstr("dataset-fashion-mnist"),
                                              HasSubstr("four files of MNIST"))));
  EXPECT_THAT([&] { MnistDataset{folder.path()}; },
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("neither train-images-idx3-ubyte nor train-images-idx3-ubyte.gz"),
                        HasSubstr("dataset-fashion-mnist"))));
  std::filesystem::create_symlink("train-images-idx3-ubyte",
                                  folder.path() / "train-images-idx3-ubyte");
  EXPECT_THAT([&] { MnistDataset{folder.path()}; },
              ThrowsMessage<UsageError>(HasSubstr("neither train-images-idx3-ubyte nor")));
}

TEST(MnistDataset, RefusesFilesThatDoNotFitTogether) {
  const TemporaryFolder folder;
  folder.write("train-images-idx3-ubyte", idx_bytes({5, 4, 3}));
  folder.write("train-labels-idx1-ubyte", idx_bytes({4}));
  EXPECT_THAT(
      [&] { MnistDataset{folder.path()}; },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("holds 5 images"), HasSubstr("holds 4 labels"))));
  folder.write("train-images-idx3-ubyte", idx_bytes({5}));
  EXPECT_THAT(
      [&] { MnistDataset{folder.path()}; },
      ThrowsMessage<UsageError>(HasSubstr("the file has 1 dimensions, but 3 are expected")));
}

}  // namespace
}  // namespace lockstep
