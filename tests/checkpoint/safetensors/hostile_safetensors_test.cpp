// SPDX-License-Identifier: BSD-3-Clause
// safetensors files that break a rule, each with the message that says which.
#include "checkpoint/safetensors_bytes.h"
#include "data/idx_bytes.h"
#include "support/limits.h"
#include "support/rank_processes.h"
#include "support/temporary_folder.h"
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/core/error.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Reads everything. Returns the number of elements.
std::int64_t parse_safetensors(const std::string& bytes) {
  const SafetensorsFile file(as_bytes(bytes), "some-file");
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < file.entries().size(); ++i) elements += file.read(i).numel();
  return elements;
}

std::string with_entry(const std::string& entry, const std::string& data) {
  return safetensors_bytes("{\"a\":" + entry + "}", data);
}

std::string two_entries(const std::string& first, const std::string& second, std::size_t bytes) {
  const std::string begin = R"({"dtype":"U8","shape":)";
  return safetensors_bytes("{\"a\":" + begin + first + "},\"b\":" + begin + second + "}}",
                           std::string(bytes, 'x'));
}

const std::string kGood = safetensors_bytes(
    R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2],)"
    R"("data_offsets":[0,8]},"b":{"dtype":"I8","shape":[],"data_offsets":[8,9]}} )",
    "01234567x");

TEST(HostileSafetensors, AreRefusedByTheRuleThatTheyBreak) {
  const std::string deep = std::string(100'000, '[');
  const std::vector<std::pair<std::string, std::string>> files{
      {"", "it has 0 bytes, too few"},
      {"123456789", "it has 9 bytes, too few"},
      {safetensors_bytes("{}", "", 3),
       "its first 8 bytes announce a header of 3 bytes, but the file"},
      {safetensors_bytes("{}", "", 1), "announce a header of 1 bytes"},
      {safetensors_bytes("{}", "", 0), "announce a header of 0 bytes"},
      {safetensors_bytes("{}", "", ~0ull), "announce a header of 18446744073709551615 bytes"},
      {safetensors_bytes("{}", "", 100'000'001), "and a header at most 100000000"},
      {safetensors_bytes(" {}", ""), "its header begins with \" \""},
      {safetensors_bytes("[]", ""), "its header begins with \"[\""},
      {safetensors_bytes("{}x", ""), "not valid JSON at byte 3"},
      {safetensors_bytes("{} {}", ""), "not valid JSON at byte 4"},
      {safetensors_bytes(std::string("{}\0 anything {\"a\":1}", 20), ""),
       "not valid JSON at byte 3, which is zero"},
      {safetensors_bytes(std::string("{}\0", 3), ""), "not valid JSON at byte 3, which is zero"},
      {safetensors_bytes("{}\n", ""), "its header ends with \"\\x0a\", and only spaces"},
      {safetensors_bytes("{}\t ", ""), "its header ends with \"\\x09\", and only spaces"},
      {safetensors_bytes("{", "x"), "announce a header of 1 bytes"},
      {safetensors_bytes("{\"", ""), "not valid JSON"},
      {safetensors_bytes("{\"\xff\":1}", ""), "not valid JSON"},
      {safetensors_bytes("{}", "x"), "1 bytes follow the last entry, which ends at 0"},
      {safetensors_bytes("{\"a\":" + deep, ""), "entry \"a\": it is an array, not an object"},
      {with_entry(R"({"shape":)" + deep, ""), "entry \"a\": its shape has an array, not a size"},
      {with_entry(R"({"dtype":{"dtype":{}}})", ""), "entry \"a\": its dtype is an object"},
      {with_entry("null", ""), "entry \"a\": it is null, not an object"},
      {with_entry("true", ""), "it is true"},
      {with_entry("\"F32\"", ""), "it is \"F32\""},
      {with_entry("{}", ""), "entry \"a\": it has no dtype"},
      {with_entry(R"({"dtype":"U8","shape":[0]})", ""), "it has no data_offsets"},
      {with_entry(R"({"dtype":"U8","data_offsets":[0,0]})", ""), "it has no shape"},
      {with_entry(R"({"dtype":"U8","extra":1})", ""), "it has the unknown field \"extra\""},
      {with_entry(R"({"dtype":"U8","dtype":"U8"})", ""), "it has \"dtype\" twice"},
      {with_entry(R"({"dtype":8})", ""), "its dtype is 8"},
      {with_entry(R"({"dtype":"F31","shape":[],"data_offsets":[0,0]})", ""),
       "its data_offsets [0, 0] are 0 bytes, too few for the shape []"},
      {with_entry(R"({"dtype":"F31","shape":[9],"data_offsets":[0,1]})", "x"),
       "its data_offsets [0, 1] are 1 bytes, too few for the shape [9]"},
      {with_entry(R"({"dtype":"F31","shape":[8],"data_offsets":[0,1]})", "x"),
       "entry \"a\" has elements of type \"F31\" (Lockstep does not know it)"},
      {with_entry(R"({"dtype":"","shape":[],"data_offsets":[0,16]})", std::string(16, 'x')),
       "entry \"a\" has elements of type \"\" (Lockstep does not know it)"},
      {with_entry(R"({"dtype":"F31","shape":[4294967296,4294967296],"data_offsets":[0,0]})", ""),
       "its shape [4294967296, 4294967296] overflows"},
      {with_entry(R"({"dtype":"U8","shape":[-1]})", ""), "its shape has -1, not a size"},
      {with_entry(R"({"dtype":"U8","shape":[1.0]})", ""), "its shape has 1.0, not a size"},
      {with_entry(R"({"dtype":"U8","shape":["1"]})", ""), "its shape has \"1\", not a size"},
      {with_entry(R"({"dtype":"U8","shape":[9223372036854775808]})", ""),
       "its shape has the size 9223372036854775808"},
      {with_entry(R"({"dtype":"U8","shape":[99999999999999999999]})", ""),
       "its shape has 99999999999999999999, not a size"},
      {with_entry(R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]})", ""),
       "its shape [4294967296, 4294967296] overflows"},
      {with_entry(R"({"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]})", ""),
       "its shape [2305843009213693952] overflows"},
      {with_entry(R"({"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]})", ""),
       "overflows"},
      {with_entry(R"({"dtype":"U8","shape":[)" +
                      [] {
                        std::string ones = "1";
                        for (int i = 0; i < 64; ++i) ones += ",1";
                        return ones;
                      }() +
                      R"(],"data_offsets":[0,1]})",
                  "x"),
       "its shape has more than 64 dimensions"},
      {with_entry(R"({"dtype":"U8","shape":[1],"data_offsets":[0]})", "x"),
       "its data_offsets are not two numbers"},
      {with_entry(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1,1]})", "x"),
       "its data_offsets are more than two numbers"},
      {with_entry(R"({"dtype":"U8","shape":[1],"data_offsets":[0,-1]})", "x"),
       "its data_offsets have -1, not an offset"},
      {with_entry(R"({"dtype":"U8","shape":[1],"data_offsets":"0"})", "x"),
       "its data_offsets is \"0\""},
      {with_entry(R"({"dtype":"U8","shape":[1],"data_offsets":[1,0]})", "x"),
       "its data_offsets are [1, 0], but the data has 1 bytes"},
      {with_entry(R"({"dtype":"U8","shape":[2],"data_offsets":[0,2]})", "x"),
       "its data_offsets are [0, 2], but the data has 1 bytes"},
      {with_entry(R"({"dtype":"U8","shape":[1],"data_offsets":[18446744073709551615,0]})", "x"),
       "its data_offsets are [18446744073709551615, 0]"},
      {with_entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,9]})", std::string(9, 'x')),
       "are 9 bytes, but the shape [2] of F32 takes 8"},
      {two_entries("[4],\"data_offsets\":[0,4]", "[4],\"data_offsets\":[2,6]", 6),
       "entry \"b\": its data begins at 2, within another entry, which ends at 4"},
      {two_entries("[4],\"data_offsets\":[0,4]", "[4],\"data_offsets\":[0,4]", 4),
       "its data begins at 0, within another entry, which ends at 4"},
      {two_entries("[1],\"data_offsets\":[0,1]", "[1],\"data_offsets\":[2,3]", 3),
       "entry \"b\": its data begins at 2, but the one before ends at 1"},
      {two_entries("[1],\"data_offsets\":[1,2]", "[1],\"data_offsets\":[2,3]", 3),
       "entry \"a\": its data begins at 1, but the one before ends at 0"},
      {two_entries("[1],\"data_offsets\":[0,1]", "[1],\"data_offsets\":[1,2]", 4),
       "2 bytes follow the last entry, which ends at 2"},
      {safetensors_bytes(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}})", ""),
       "the name \"a\" is there twice"},
      {safetensors_bytes("{\"" + std::string(4097, 'n') + "\":{}}", ""),
       "nnn...\" (4097 bytes) is longer than 4096 bytes"},
      {safetensors_bytes(R"({"__metadata__":{},"__metadata__":{}})", ""),
       "the name \"__metadata__\" is there twice"},
      {safetensors_bytes(R"({"__metadata__":{"k":"1","k":"2"}})", ""),
       "__metadata__ has the key \"k\" twice"},
      {safetensors_bytes(R"({"__metadata__":{"k":1}})", ""),
       "__metadata__ has 1 at the key \"k\", not a string"},
      {safetensors_bytes(R"({"__metadata__":{"k":{}}})", ""), "__metadata__ has an object"},
      {safetensors_bytes(R"({"__metadata__":[]})", ""), "it is an array, not an object"},
      {safetensors_bytes(R"({"__metadata__":{"k":null}})", ""), "__metadata__ has null at the key"},
      {safetensors_bytes(R"({"__metadata__":null,"__metadata__":{}})", ""),
       "the name \"__metadata__\" is there twice"},
      // As writers made it that had metadata only.
      {safetensors_bytes(R"({},"__metadata__":{"key":"value"}}  )", ""),
       "not valid JSON at byte 3"},
      {with_entry(R"({"dtype":"BOOL","shape":[2],"data_offsets":[0,2]})", "\x01\x02"),
       "entry \"a\": element 1 has the byte 2, but an element of type bool is 0 or 1"},
      {safetensors_bytes("{\"\\u001b[31m\":null}", ""), "entry \"\\x1b[31m\": it is null"}};
  for (const auto& [bytes, message] : files) {
    EXPECT_THAT([&] { parse_safetensors(bytes); },
                ThrowsMessage<CheckpointError>(AllOf(HasSubstr("some-file: "), HasSubstr(message))))
        << message;
  }
}

// A sanitizer takes most of a minute for so many.
#if !defined(__SANITIZE_ADDRESS__)
TEST(HostileSafetensors, HaveABoundedNumberOfEntries) {
  std::string header = "{";
  for (int i = 0; i <= 250'000; ++i) {
    header += (i == 0 ? "\"" : ",\"") + std::to_string(i) +
              R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  EXPECT_THAT([&] { parse_safetensors(safetensors_bytes(header + "}", "")); },
              ThrowsMessage<CheckpointError>(HasSubstr("it has more than 250000 tensors")));
}
#endif

TEST(HostileSafetensors, EveryTruncationIsRefused) {
  EXPECT_EQ(parse_safetensors(kGood), 3);
  for (std::size_t size = 0; size < kGood.size(); ++size) {
    EXPECT_THROW(parse_safetensors(kGood.substr(0, size)), CheckpointError) << size;
  }
  EXPECT_THROW(parse_safetensors(kGood + "x"), CheckpointError);
}

// A flipped bit may make another name or another type of the same size; never a crash, and never
// more elements than the file has bytes.
TEST(HostileSafetensors, AFlippedBitIsRefusedOrStillWellFormed) {
  int refused = 0;
  for (std::size_t i = 0; i < kGood.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = kGood;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      try {
        EXPECT_LE(parse_safetensors(flipped), 9) << "byte " << i << " bit " << bit;
      } catch (const CheckpointError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 500);
}

TEST(HostileSafetensors, HaveShortMessages) {
  const std::string nines(1'000'000, '9');
  for (const std::string& header :
       {"{\"" + nines, "{\"a\":" + nines + "}", "{\"a\":1e" + nines + "}",
        "{\"a\":{\"shape\":[" + nines + "]}}"}) {
    try {
      parse_safetensors(safetensors_bytes(header, ""));
      ADD_FAILURE() << header.substr(0, 20);
    } catch (const CheckpointError& error) {
      EXPECT_LT(std::string_view(error.what()).size(), 500u) << header.substr(0, 20);
    }
  }
}

// The offsets are compared with the file's size before anything is allocated.
TEST(HostileSafetensors, CannotMakeTheReaderAllocate) {
  const auto outcomes = run_ranks(1, [&](Rank& rank) {
    if (!limit_memory(64 << 20)) return rank.report("skipped");
    EXPECT_THROW(
        parse_safetensors(with_entry(
            R"({"dtype":"U8","shape":[1099511627776],"data_offsets":[0,1099511627776]})", "x")),
        CheckpointError);
    EXPECT_THROW(parse_safetensors(safetensors_bytes("{}", "", 99'999'999)), CheckpointError);
  });
  if (outcomes[0].result == "skipped") GTEST_SKIP() << "a sanitizer has its own memory";
}

TEST(HostileSafetensors, AHeaderBeyondMemoryIsAnError) {
  const TemporaryFolder folder;
  constexpr std::uint64_t kHeader = 90'000'000;
  folder.write("holes", safetensors_bytes("{", "", kHeader));
  std::filesystem::resize_file(folder.path() / "holes", 8 + kHeader);
  const auto outcomes = run_ranks(1, [&](Rank& rank) {
    if (!limit_memory(64 << 20)) return rank.report("skipped");
    EXPECT_THAT(
        [&] { read_safetensors(folder.path() / "holes"); },
        ThrowsMessage<CheckpointError>(HasSubstr("holes: it does not fit into the memory")));
  });
  if (outcomes[0].result == "skipped") GTEST_SKIP() << "a sanitizer has its own memory";
}

TEST(HostileSafetensors, ATensorBeyondMemoryIsAnError) {
  const TemporaryFolder folder;
  constexpr std::uint64_t kBytes = std::uint64_t{1} << 42;
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[4398046511104],"data_offsets":[0,4398046511104]}})";
  folder.write("holes", safetensors_bytes(header, ""));
  std::filesystem::resize_file(folder.path() / "holes", 8 + header.size() + kBytes);
  EXPECT_THAT([&] { SafetensorsFile(folder.path() / "holes").read(0); },
              ThrowsMessage<CheckpointError>(AllOf(HasSubstr("holes: entry \"a\""),
                                                   HasSubstr("takes 4194304.0 MiB, more memory"))));
}

// Each of them is small.
TEST(HostileSafetensors, TensorsThatAreBeyondMemoryTogetherAreAnError) {
  const TemporaryFolder folder;
  std::string header;
  for (int i = 0; i < 100; ++i) {
    header += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[1048576],"data_offsets":[{},{}]}})",
                          i == 0 ? "{" : ",", i, i << 20, (i + 1) << 20);
  }
  header += "}";
  folder.write("holes", safetensors_bytes(header, ""));
  std::filesystem::resize_file(folder.path() / "holes", 8 + header.size() + (100 << 20));
  const auto outcomes = run_ranks(1, [&](Rank& rank) {
    if (!limit_memory(64 << 20)) return rank.report("skipped");
    EXPECT_THAT([&] { read_safetensors(folder.path() / "holes"); },
                ThrowsMessage<CheckpointError>(
                    HasSubstr("holes: the sum of its tensors takes 100.0 MiB, more memory")));
  });
  if (outcomes[0].result == "skipped") GTEST_SKIP() << "a sanitizer has its own memory";
}

}  // namespace
}  // namespace lockstep::testing
