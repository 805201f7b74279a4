// SPDX-License-Identifier: BSD-3-Clause
// CIFAR's files, whole, missing, truncated and with labels that cannot be.
#include "lockstep/data/cifar_dataset.h"

#include "support/temporary_folder.h"
#include <gmock/gmock.h>
#include <torch/types.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TemporaryFolder;
using ::testing::ThrowsMessage;

// A record whose pixel i is `first` + i, modulo 256.
std::string record(const std::string& labels, int first) {
  std::string bytes = labels;
  for (int i = 0; i < 3072; ++i) bytes += static_cast<char>((first + i) % 256);
  return bytes;
}

void write_cifar10(const TemporaryFolder& folder) {
  for (int file = 1; file <= 5; ++file) {
    folder.write(
        "data_batch_" + std::to_string(file) + ".bin",
        record(std::string(1, static_cast<char>(file)), file) + record(std::string(1, '\0'), 0));
  }
  folder.write("test_batch.bin", record("\x09", 200));
}

TEST(CifarDataset, ReadsBothSplitsOfCifar10) {
  const TemporaryFolder folder;
  write_cifar10(folder);
  CifarDataset train(folder.path());
  EXPECT_EQ(train.size(), 10u);
  EXPECT_TRUE(train.labels().equal(torch::tensor({1, 0, 2, 0, 3, 0, 4, 0, 5, 0}, torch::kLong)));
  const auto sample = train.get(4);
  const auto pixels = torch::arange(3, 3 + 3072).remainder(256).reshape({3, 32, 32});
  EXPECT_TRUE(sample.data.equal(pixels.to(torch::kFloat).div(255)));
  EXPECT_EQ(sample.target.item<std::int64_t>(), 3);

  const CifarDataset test(folder.path(), CifarKind::cifar10, CifarSplit::test);
  EXPECT_EQ(test.images().sizes(), (std::vector<std::int64_t>{1, 3, 32, 32}));
  EXPECT_EQ(test.labels()[0].item<std::int64_t>(), 9);
}

TEST(CifarDataset, ReadsEitherLabelOfCifar100InTheUnpackedArchive) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() / "cifar-100-binary");
  folder.write("cifar-100-binary/train.bin", record("\x13\x63", 7));
  const CifarDataset fine(folder.path(), CifarKind::cifar100);
  const CifarDataset coarse(folder.path() / "cifar-100-binary", CifarKind::cifar100_coarse);
  EXPECT_EQ(fine.labels()[0].item<std::int64_t>(), 0x63);
  EXPECT_EQ(coarse.labels()[0].item<std::int64_t>(), 0x13);
  EXPECT_TRUE(fine.images().equal(coarse.images()));
  EXPECT_EQ(fine.images()[0][0][0][0].item<int>(), 7);
}

TEST(CifarDataset, SaysWherePeopleGetWhatIsMissing) {
  const TemporaryFolder folder;
  EXPECT_THAT([&] { CifarDataset(folder.path() / "absent"); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("/absent: there is no such data folder"),
                                              HasSubstr("kriz/cifar-10-binary.tar.gz"))));
  EXPECT_THAT([&] { CifarDataset(folder.path(), CifarKind::cifar100, CifarSplit::test); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("there is no test.bin"),
                                              HasSubstr("kriz/cifar-100-binary.tar.gz"))));
}

TEST(CifarDataset, RefusesFilesThatAreNotWholeRecords) {
  const TemporaryFolder folder;
  write_cifar10(folder);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{3072},
                                 std::size_t{3074}, std::size_t{2 * 3073 - 1}}) {
    folder.write("data_batch_3.bin", std::string(size, '\1'));
    EXPECT_THAT([&] { CifarDataset{folder.path()}; },
                ThrowsMessage<UsageError>(
                    AllOf(HasSubstr("data_batch_3.bin: its " + std::to_string(size) + " bytes"),
                          HasSubstr("records of 3073 bytes"))));
  }
}

TEST(CifarDataset, RefusesALabelThatIsNoClass) {
  const TemporaryFolder folder;
  write_cifar10(folder);
  folder.write("test_batch.bin", record("\x09", 0) + record("\x0a", 0));
  EXPECT_THAT([&] { CifarDataset(folder.path(), CifarKind::cifar10, CifarSplit::test); },
              ThrowsMessage<UsageError>(HasSubstr("the label of image 1 is 10, but there are 10")));
  // One record of CIFAR-100, with the superclass 20.
  folder.write("test.bin", record("\x14\x63", 0));
  EXPECT_EQ(CifarDataset(folder.path(), CifarKind::cifar100, CifarSplit::test).size(), 1u);
  EXPECT_THAT([&] { CifarDataset(folder.path(), CifarKind::cifar100_coarse, CifarSplit::test); },
              ThrowsMessage<UsageError>(HasSubstr("label of image 0 is 20")));
}

TEST(CifarDataset, RefusesMoreThanTheMemoryThatIsAvailable) {
  const TemporaryFolder folder;
  write_cifar10(folder);
  std::filesystem::resize_file(folder.path() / "test_batch.bin",
                               3073 * (std::uintmax_t{1} << 30));  // a hole
  EXPECT_THAT([&] { CifarDataset(folder.path(), CifarKind::cifar10, CifarSplit::test); },
              ThrowsMessage<UsageError>(HasSubstr("MiB of memory that are available")));
}

}  // namespace
}  // namespace lockstep
