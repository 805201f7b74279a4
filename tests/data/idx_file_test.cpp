// SPDX-License-Identifier: BSD-3-Clause
// The parser with good files, and with truncated, flipped, hostile and randomly mutated ones.
#include "lockstep/data/idx_file.h"

#include "data/idx_bytes.h"
#include "support/limits.h"
#include "support/rank_processes.h"
#include "support/temporary_folder.h"
#include <gmock/gmock.h>
#include <torch/types.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::as_bytes;
using testing::gzip;
using ::testing::HasSubstr;
using testing::idx_bytes;
using testing::idx_header;
using testing::limit_memory;
using testing::Rank;
using testing::run_ranks;
using testing::TemporaryFolder;
using ::testing::ThrowsMessage;

at::Tensor parse(const std::string& bytes) {
  return IdxFile(as_bytes(bytes), "some-file").read();
}

#define EXPECT_REFUSED(bytes, text)        \
  EXPECT_THAT([&] { (void)parse(bytes); }, \
              ThrowsMessage<UsageError>(AllOf(HasSubstr("some-file: "), HasSubstr(text))))

TEST(IdxFile, ReadsRawAndGzipAlike) {
  const std::string bytes = idx_header({2, 3}) + std::string("\x01\x02\x03\xfd\xfe\xff");
  const auto expected = torch::tensor({1, 2, 3, 253, 254, 255}, torch::kByte).reshape({2, 3});
  EXPECT_TRUE(parse(bytes).equal(expected));
  EXPECT_TRUE(parse(gzip(bytes)).equal(expected));
}

TEST(IdxFile, ReadsAnEmptyArray) {
  EXPECT_EQ(parse(idx_header({0, 28, 28})).sizes(), (std::vector<std::int64_t>{0, 28, 28}));
  EXPECT_EQ(parse(gzip(idx_header({0}))).sizes(), (std::vector<std::int64_t>{0}));
}

TEST(IdxFile, RefusesAnotherFormat) {
  EXPECT_REFUSED("", "ends within its magic number");
  EXPECT_REFUSED(std::string("\0\0\x08", 3), "ends within its magic number");
  EXPECT_REFUSED("PK\x03\x04 and so on", "begins with 50 4b 03 04");
  EXPECT_REFUSED(idx_header({1}, 0x0d), "begins with 00 00 0d 01");
  EXPECT_REFUSED(std::string("\0\0\x08\0", 4), "header declares 0 dimensions");
  EXPECT_REFUSED(std::string("\0\0\x08\xc8", 4), "header declares 200 dimensions");
  EXPECT_REFUSED(gzip("hello, world"), "begins with 68 65 6c 6c");
}

TEST(IdxFile, RefusesEveryTruncation) {
  const std::string raw = idx_bytes({3, 4, 5});
  const std::string zipped = gzip(raw);
  for (std::size_t size = 0; size < raw.size(); ++size) {
    EXPECT_THROW((void)parse(raw.substr(0, size)), UsageError) << size;
  }
  for (std::size_t size = 0; size < zipped.size(); ++size) {
    EXPECT_THROW((void)parse(zipped.substr(0, size)), UsageError) << size;
  }
  EXPECT_REFUSED(zipped.substr(0, zipped.size() - 4), "ends early");
}

TEST(IdxFile, RefusesWhatFollowsTheData) {
  EXPECT_REFUSED(idx_bytes({3, 4}) + "x", "1 bytes follow");
  EXPECT_REFUSED(gzip(idx_bytes({3, 4}) + "x"), "more data than its header says");
  EXPECT_REFUSED(gzip(idx_bytes({3, 4})) + "xyz", "3 bytes follow the end of the gzip data");
}

// Bytes 3 to 9 hold the flags and the time of the gzip header, which no checksum covers.
TEST(IdxFile, FindsEveryFlippedBitInGzipData) {
  const std::string raw = idx_bytes({10, 6});
  const auto expected = parse(raw);
  const std::string zipped = gzip(raw);
  for (std::size_t i = 10; i < zipped.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = zipped;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      // A bit that inflate ignores (padding) may pass, but never with other data.
      try {
        EXPECT_TRUE(parse(flipped).equal(expected)) << "byte " << i << " bit " << bit;
      } catch (const UsageError&) {
      }
    }
  }
  std::string crc = zipped;
  crc[crc.size() - 8] = static_cast<char>(crc[crc.size() - 8] ^ 1);
  EXPECT_REFUSED(crc, "damaged (incorrect data check)");
}

TEST(IdxFile, RefusesHostileDimensions) {
  constexpr std::uint32_t kMost = 0xffffffff;
  EXPECT_REFUSED(idx_header({kMost}), "more than the file can hold (0 bytes)");
  // 2^64 elements, which is 0 modulo 2^64.
  EXPECT_REFUSED(idx_header({65536, 65536, 65536, 65536}), "65536 x 65536 x 65536 x 65536");
  EXPECT_REFUSED(idx_header({kMost, kMost, kMost, kMost, kMost, kMost, kMost, kMost}), "more than");
  // 8,589,934,590 bytes, which is small modulo 2^32.
  EXPECT_REFUSED(idx_header({2, kMost}) + "ab", "more than the file can hold (2 bytes)");
  EXPECT_REFUSED(idx_header({0, kMost, kMost, kMost}), "more than");
  EXPECT_REFUSED(gzip(idx_header({100, kMost})), "more than the file can hold");
  // Possible for gzip of this size, but not there.
  EXPECT_REFUSED(gzip(idx_header({100, 28})), "ends within its elements");
}

TEST(IdxFile, SurvivesRandomMutations) {
  const std::string raw = idx_bytes({5, 4, 3});
  const std::vector<std::string> seeds{raw, gzip(raw), gzip(idx_bytes({2000})), idx_header({0})};
  std::mt19937 random(20240607);
  const auto below = [&](std::size_t n) { return n == 0 ? 0 : random() % n; };
  int refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = seeds[below(seeds.size())];
    for (auto changes = 1 + below(6); changes > 0; --changes) {
      switch (below(4)) {
        case 0:
          if (!bytes.empty()) bytes[below(bytes.size())] = static_cast<char>(random());
          break;
        case 1:
          bytes.resize(below(bytes.size() + 1));
          break;
        case 2:
          bytes.insert(below(bytes.size() + 1), 1 + below(9), static_cast<char>(random()));
          break;
        default:  // the header, where most decisions are made
          if (!bytes.empty()) {
            bytes[below(std::min<std::size_t>(bytes.size(), 16))] = static_cast<char>(random());
          }
      }
    }
    try {
      const auto tensor = parse(bytes);
      EXPECT_LE(static_cast<std::size_t>(tensor.numel()), bytes.size() * 1032);
      (void)tensor.sum().item<std::int64_t>();  // reads every element, for AddressSanitizer
    } catch (const UsageError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 15'000);
}

TEST(IdxFile, RefusesAFileThatDoesNotFitInMemory) {
  const TemporaryFolder folder;
  const std::string header = idx_header({1 << 20, 1 << 22});
  folder.write("images", header);
  std::filesystem::resize_file(folder.path() / "images",
                               header.size() + (std::uintmax_t{1} << 42));  // a hole
  IdxFile file(folder.path() / "images");
  EXPECT_EQ(file.dimensions(), (std::vector<std::int64_t>{1 << 20, 1 << 22}));
  EXPECT_THAT([&] { file.read(); }, ThrowsMessage<UsageError>(AllOf(
                                        HasSubstr("/images: its header announces 4194304.0 MiB"),
                                        HasSubstr("available"))));
}

// What a header announces is compared with the memory that there is, and what follows it is not
// unpacked.
TEST(IdxFile, RefusesAGzipFileByWhatItsHeaderAnnounces) {
  const TemporaryFolder folder;
  constexpr std::uint32_t kBytes = 64 << 20;
  const std::string bomb(kBytes, '\0');
  folder.write("announced", gzip(idx_header({kBytes}) + bomb));
  folder.write("hidden", gzip(idx_header({3}) + bomb));
  const auto outcomes = run_ranks(1, [&](Rank& rank) {
    if (!limit_memory(32 << 20)) return rank.report("skipped");
    EXPECT_THAT([&] { IdxFile(folder.path() / "announced").read(); },
                ThrowsMessage<UsageError>(AllOf(HasSubstr("/announced: its header announces 64.0"),
                                                HasSubstr("available"))));
    EXPECT_THAT([&] { IdxFile(folder.path() / "hidden").read(); },
                ThrowsMessage<UsageError>(HasSubstr("more data than its header says")));
  });
  if (outcomes[0].result == "skipped") GTEST_SKIP() << "a sanitizer has its own memory";
}

TEST(IdxFile, ReadsNoFurtherThanItsHeaderSays) {
  const TemporaryFolder folder;
  folder.write("images", idx_bytes({3}));
  std::filesystem::resize_file(folder.path() / "images", std::uintmax_t{1} << 42);  // a hole
  EXPECT_THAT([&] { IdxFile(folder.path() / "images").read(); },
              ThrowsMessage<UsageError>(HasSubstr("4398046511093 bytes follow the end")));
}

TEST(IdxFile, NamesTheFileThatItCannotRead) {
  const testing::TemporaryFolder folder;
  EXPECT_THAT([&] { (void)IdxFile(folder.path() / "absent"); },
              ThrowsMessage<UsageError>(HasSubstr("absent: there is no such file")));
  EXPECT_THAT([&] { (void)IdxFile(folder.path()); },
              ThrowsMessage<UsageError>(HasSubstr("not a regular file")));
  EXPECT_THROW((void)IdxFile("/dev/zero"), UsageError);
  folder.write("good", idx_bytes({6}));
  EXPECT_EQ(IdxFile(folder.path() / "good").read().numel(), 6);
}

}  // namespace
}  // namespace lockstep
