// SPDX-License-Identifier: BSD-3-Clause
// Files of torch.save that break a rule or try to run code, each with the message that says so.
#include <filesystem>
#include <fstream>

#include "checkpoint/safetensors_bytes.h"
#include "checkpoint/torch_bytes.h"
#include "data/idx_bytes.h"
#include "support/limits.h"
#include "support/rank_processes.h"
#include "support/temporary_folder.h"
#include <gmock/gmock.h>
#include <torch/types.h>

#include "lockstep/checkpoint/torch_file.h"
#include "lockstep/core/error.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Reads everything. Returns the number of elements.
std::int64_t parse_torch(const std::string& bytes) {
  std::int64_t elements = 0;
  for (const auto& entry : all_tensors(read_torch_file(as_bytes(bytes), "some-file"))) {
    elements += entry.tensor.numel();
    if (entry.tensor.numel() > 0) (void)entry.tensor.to(torch::kDouble).sum().item<double>();
  }
  return elements;
}

void expect_refused(const std::vector<std::pair<std::string, std::string>>& files) {
  for (const auto& file : files) {
    EXPECT_THAT(
        [&] { parse_torch(file.first); },
        ThrowsMessage<CheckpointError>(AllOf(HasSubstr("some-file: "), HasSubstr(file.second))))
        << file.second;
  }
}

const std::string kBytes = "torch\nByteStorage";
const std::string kPickle{"\x80\x02N."};

std::string tensor_in_two_bytes(int offset, const std::vector<int>& sizes,
                                const std::vector<int>& strides) {
  return torch_bytes(pickled_tensor(pickled_storage(kBytes, "0", 2), offset, sizes, strides),
                     "\x01\x02");
}

std::string good_file() {
  return torch_bytes("}(" + pickled("w") +
                         pickled_tensor(pickled_storage(kBytes, "0", 4), 0, {2, 2}, {2, 1}) +
                         pickled("epoch") + pickled(3) + "u",
                     "\x01\x02\x03\x04");
}

TEST(HostileTorchFile, NeverCallsAnything) {
  const TemporaryFolder folder;
  const auto was_here = folder.path() / "was-here";
  const std::string to_do = pickled("touch '" + was_here.string() + "'") + "\x85R";
  std::vector<std::pair<std::string, std::string>> files{
      {torch_bytes("cposix\nsystem\n" + to_do),
       "at byte 2 of its pickle: it refers to \"posix.system\", which is neither"},
      {torch_bytes("cbuiltins\neval\n" + to_do), "\"builtins.eval\""},
      {torch_bytes("ctorch\nload\n" + to_do), "\"torch.load\""},
      {torch_bytes("ctorch._utils\n_rebuild_device_tensor_from_numpy\n" + to_do), "it refers to"},
      {torch_bytes("ccollections\ndefaultdict\n" + to_do), "it refers to"},
      {torch_bytes("c__builtin__\n" + std::string(300, 'x') + "\n"), "a name does not end"},
      {torch_bytes("(S'ls'\niposix\nsystem\n"), "the opcode STRING is never needed"},
      {torch_bytes("(iposix\nsystem\n"), "the opcode INST is never needed"},
      {torch_bytes("(N" + std::string("o")), "the opcode OBJ is never needed"},
      {torch_bytes("N)\x81"), "the opcode NEWOBJ"},
      {torch_bytes("N)}\x92"), "the opcode NEWOBJ_EX"},
      {torch_bytes("\x82\x01"), "the opcode EXT1"},
      {torch_bytes("\x83\x01\x01"), "the opcode EXT2"},
      {torch_bytes("\x93"), "the opcode STACK_GLOBAL"},
      {torch_bytes("P1\n"), "the opcode PERSID"},
      {torch_bytes("}}" + std::string("b")), "the opcode BUILD, which sets attributes"},
      {torch_bytes("ccollections\nOrderedDict\n)R}" + pickled("x") + "Ns" + "b"),
       "the opcode BUILD, which sets attributes"},
      {torch_bytes("Nb"), "the pickle needs a dict here"},
      {torch_bytes("NNR"), "a call of an object that is not a function"},
      {torch_bytes("N)R"), "a call of an object that is not a function"},
      {torch_bytes("ccollections\nOrderedDict\nN\x85R"), "an OrderedDict that is made from"},
      {torch_bytes("ctorch\nFloatStorage\n)R"), "a call of \"torch.FloatStorage\""},
      {torch_bytes("ctorch\nfloat32\n"), "the value \"torch.float32\" is neither"},
      {torch_bytes("NQ"), "a persistent id that does not name a storage"},
      {torch_bytes(pickled_tuple({1, 2, 3, 4, 5}) + "Q"),
       "a persistent id that does not name a storage"},
      {torch_bytes("(" + pickled("module") + "NNNNtQ"),
       "a persistent id that does not name a storage"},
      {torch_bytes("(" + pickled("storage") + "ctorch\nfloat32\n" + pickled("0") + pickled("cpu") +
                   pickled(1) + "tQ"),
       "a storage without a type"},
      {torch_bytes(pickled_storage(kBytes, "0", -1)), "a storage without a type or a size"},
      {torch_bytes(pickled_storage(kBytes, "0", 0)), "the storage \"0\" stands alone"},
      {torch_bytes("\xff"), "there is no opcode 0xff"}};
  expect_refused(files);
  EXPECT_FALSE(std::filesystem::exists(was_here));
}

TEST(HostileTorchFile, APickleMustBeWhole) {
  std::string endless(40, '(');
  expect_refused(
      {{zip_bytes({{"a/data.pkl", ""}}), "the pickle ends within an opcode"},
       {zip_bytes({{"a/data.pkl", "N."}}), "does not begin with its protocol"},
       {zip_bytes({{"a/data.pkl", "\x80\x04N."}}), "protocol 4, but only protocol 2"},
       {zip_bytes({{"a/data.pkl", kPickle + "x"}}), "1 bytes follow the end"},
       {torch_bytes("NN"), "ends with 2 values instead of one"},
       {torch_bytes(""), "ends with 0 values"},
       {torch_bytes("(N"), "ends with 1 values"},
       {torch_bytes(endless), "ends with 0 values"},
       {torch_bytes("u"), "the pickle has no mark here"},
       {torch_bytes("}(Nu"), "a key has no value"},
       {torch_bytes("N(NNu"), "the pickle needs a dict here"},
       {torch_bytes("](Ne"
                    "s"),
        "takes a value that it did not make"},
       {torch_bytes("N(s"), "takes a value that it did not make"},
       {torch_bytes("(\x85"), "takes a value that it did not make"},
       {torch_bytes("q" + std::string(1, '\0')), "remembers a value that it did not make"},
       {torch_bytes("h\x05"), "has not remembered value 5"},
       {torch_bytes("\x8a\x09" + std::string(9, '\x01')), "a whole number of 9 bytes"},
       {torch_bytes("X\xff\xff\xff\xff"), "the pickle ends within an opcode"},
       {torch_bytes("}NNs"), "a key that is neither a string nor an integer"},
       {torch_bytes("}" + pickled("k") + "Ns" + pickled("k") + "Ns"),
        "a dict has the key \"k\" twice"},
       {torch_bytes("}" + pickled(1) + "Ns" + pickled(1) + "Ns"), "the key 1 twice"}});
}

TEST(HostileTorchFile, ValuesHaveABoundedSizeAndDepth) {
  std::string deep;
  for (int i = 0; i < 200; ++i) deep += "]";
  deep += std::string(199, 'a');
  // Thirty lists, each with the one before ten times: 10^30 values.
  std::string laughs = "]q" + std::string(1, '\0');
  for (char i = 1; i <= 30; ++i) {
    laughs += "](";
    for (int j = 0; j < 10; ++j) laughs += std::string("h") + static_cast<char>(i - 1);
    laughs += std::string("eq") + i;
  }
  std::string strings = "](" + pickled(std::string(100'000, 's')) + "q" + std::string(1, '\0');
  for (int i = 0; i < 1000; ++i) strings += std::string("h\0", 2);
  expect_refused(
      {{torch_bytes(deep), "nested more than 100 deep"},
       {torch_bytes("]q\x01h\x01"
                    "a"),
        "nested more than 100 deep"},  // contains itself
       {torch_bytes("](" + laughs + "e"), "repeats values until they are many times its own size"},
       {torch_bytes(strings + "e"), "repeats values"}});
}

TEST(HostileTorchFile, ATensorLiesWithinItsStorage) {
  EXPECT_EQ(parse_torch(tensor_in_two_bytes(0, {2}, {1})), 2);
  EXPECT_EQ(parse_torch(tensor_in_two_bytes(2, {0}, {1})), 0);
  EXPECT_EQ(parse_torch(tensor_in_two_bytes(1, {1, 1}, {1000, 1000})), 1);
  const std::string storage = pickled_storage(kBytes, "0", 2);
  const std::string call = "ctorch._utils\n_rebuild_tensor_v2\n";
  const std::string rest = pickled(0) + pickled_tuple({2}) + pickled_tuple({1}) + "\x89";
  expect_refused(
      {{tensor_in_two_bytes(0, {3}, {1}),
        "a tensor of shape [3], strides [1] and offset 0 in a storage of 2 elements"},
       {tensor_in_two_bytes(1, {2}, {1}), "offset 1 in a storage of 2 elements"},
       {tensor_in_two_bytes(-1, {1}, {1}), "offset -1"},
       {tensor_in_two_bytes(3, {0}, {1}), "offset 3"},
       {tensor_in_two_bytes(0, {-1}, {1}), "a tensor with -1 in its shape"},
       {tensor_in_two_bytes(0, {1}, {-1}), "a tensor with -1 in its strides"},
       {tensor_in_two_bytes(0, {2}, {}), "strides []"},
       {tensor_in_two_bytes(0, {2}, {2}), "strides [2]"},
       {tensor_in_two_bytes(0, {1000}, {0}), "save tensor.clone() of one that expand() made"},
       {tensor_in_two_bytes(0, {2147483647, 2147483647, 2147483647}, {0, 0, 0}), "a storage of 2"},
       {tensor_in_two_bytes(0, {0, 2147483647, 2147483647, 2147483647}, {0, 0, 0, 0}),
        "a storage of 2"},
       {tensor_in_two_bytes(0, std::vector<int>(65, 1), std::vector<int>(65, 1)),
        "a tensor of 65 dimensions"},
       {torch_bytes(pickled_tensor(pickled_storage(kBytes, "0", 3), 0, {2}, {1}), "xx"),
        "entry \"a/data/0\" has 2 bytes, but by the pickle 3 elements of uint8"},
       {torch_bytes(pickled_tensor(pickled_storage(kBytes, "0", 1), 0, {1}, {1}), "xx"),
        "has 2 bytes, but by the pickle 1 elements"},
       {torch_bytes(pickled_tensor(pickled_storage(kBytes, "7", 2), 0, {2}, {1}), "xx"),
        "there is no storage \"a/data/7\""},
       {torch_bytes(pickled_tensor(pickled_storage(kBytes, "../data.pkl", 2), 0, {2}, {1}), "xx"),
        "there is no storage \"a/data/../data.pkl\""},
       {torch_bytes("(" + pickled_tensor(storage, 0, {2}, {1}) +
                        pickled_tensor(pickled_storage("torch\nCharStorage", "0", 2), 0, {2}, {1}) +
                        "t",
                    "xx"),
        "the pickle gives entry \"a/data/0\" two types, uint8 and int8"},
       {torch_bytes(pickled_tensor(pickled_storage("torch\nBoolStorage", "0", 2), 0, {2}, {1}),
                    "\x01\x07"),
        "entry \"a/data/0\": element 1 has the byte 7"},
       {torch_bytes(call + "(t" + "R"), "a tensor without a storage"},
       {torch_bytes(call + "(" + storage + "tR"), "a tensor without an offset"},
       {torch_bytes(call + "(" + storage + rest + "}" + pickled("hook") + "NstR", "xx"),
        "a tensor with hooks"},
       {torch_bytes(call + "(" + storage + rest + "NNNtR", "xx"), "a tensor whose type is unknown"},
       {torch_bytes(call + "((" + pickled("storage") + "ctorch.storage\nUntypedStorage\n" +
                        pickled("0") + pickled("cpu") + pickled(2) + "tQ" + rest + "NtR",
                    "xx"),
        "a tensor whose type is unknown"},
       {torch_bytes("ctorch._utils\n_rebuild_parameter\n(N\x88NtR"), "a tensor without its data"}});
}

TEST(HostileTorchFile, ArchivesMustBeStoredWholeAndWithoutOverlap) {
  const ZippedFile pickle{"a/data.pkl", kPickle};
  const std::string good = zip_bytes({pickle});
  EXPECT_EQ(parse_torch(good), 0);
  const auto with = [&](auto change) {
    ZippedFile file = pickle;
    change(file);
    return zip_bytes({file, {"a/version", "3\n"}});
  };
  const auto patched = [&](std::size_t from_end, const std::string& bytes) {
    std::string copy = good;
    copy.replace(copy.size() - from_end, bytes.size(), bytes);
    return copy;
  };
  expect_refused(
      {{"", "it is empty"},
       {"PQ is no zip", "it is not a zip archive, as torch.save writes: it is damaged"},
       {safetensors_bytes("{}", ""), "it is a safetensors file; read it with read_safetensors"},
       {zip_bytes({{"a/data.pkl", kPickle, 8}, {"a/code/net.py", "", 8}, {"a/constants.pkl", ""}}),
        "it is a TorchScript archive, which torch::save of C++"},
       {zip_bytes({{"weight.npy", "", 8}}), "it is an archive of NumPy"},
       {zip_bytes({{"config.json", "", 8}, {"model.weights.h5", ""}}), "it is a model of Keras"},
       {zip_bytes({{"net/archive_format", "pt2"}, {"net/data/weights/w", ""}}),
        "it is an exported program"},
       {"PK\x05\x06", "it has 4 bytes, too few for a zip archive"},
       {"\x80\x02\x8a\x0a and so on", "files from before PyTorch 1.6 are not read"},
       {good + "x", "it does not end with the end record"},
       {with([](ZippedFile& file) { file.method = 8; }),
        "entry \"a/data.pkl\": it is compressed (method 8)"},
       {with([](ZippedFile& file) { file.flags = 1; }), "it is encrypted"},
       {with([](ZippedFile& file) { file.crc = 1; }), "its data is damaged: its checksum is"},
       {with([](ZippedFile& file) { file.directory_size = 1; }), "its sizes 4 and 5 differ"},
       {with([](ZippedFile& file) { file.size = 1; }),
        "its 5 bytes overlap what starts at byte 44"},
       {with([](ZippedFile& file) { file.size = -1; }), "1 unknown bytes follow it"},
       {with([](ZippedFile& file) { file.size = 1 << 30; }), "bytes overlap"},
       {with([](ZippedFile& file) { file.offset = 1; }),
        "it is the first one, but starts at byte 1"},
       {with([](ZippedFile& file) { file.offset = 44; }), "it is the first one, but starts at"},
       {with([](ZippedFile& file) { file.local_name = "b/data.pkl"; }),
        "does not agree with the central directory"},
       {with([](ZippedFile& file) { file.local_name = "a/longer.pkl"; }), "does not agree"},
       {with([](ZippedFile& file) { file.flags = 8; }), "bytes overlap what starts at"},
       {zip_bytes({pickle, pickle}), "entry \"a/data.pkl\": it is there twice"},
       {zip_bytes({pickle, {"a/version", "3", 0, 0, 0, 0, 0, -44}}), "overlaps what starts at"},
       {zip_bytes({pickle, {"a/version", "3", 0, 0, 0, 0, 0, 1 << 30}}), "overlap"},
       {zip_bytes({pickle, {"b/version", "3"}}), "entry \"b/version\" is not in the folder \"a/\""},
       {zip_bytes({pickle, {"b/data.pkl", kPickle}}), "it has several pickles"},
       {zip_bytes({{"a/version", "3"}}), "it has no pickle (data.pkl)"},
       {zip_bytes({pickle, {"a/constants.pkl", kPickle}}), "it is a TorchScript archive"},
       {zip_bytes({pickle, {"a/byteorder", "big"}}), "have the byte order \"big\""},
       {zip_bytes({pickle, {"a/byteorder", std::string(100, 'x')}}), "the byte order \"unknown\""},
       {zip_bytes({pickle, {"", "x"}}), "its name has 0 bytes"},
       {zip_bytes({pickle, {std::string(5000, 'n'), "x"}}), "its name has 5000 bytes"},
       {patched(18, "\x01"), "has several parts"},
       {patched(14, "\x02"), "has several parts"},
       {patched(14, "\x02" + std::string(1, '\0') + "\x02"), "its end record announces 2 entries"},
       {patched(14, "\xff\xff\xff\xff"), "its end record announces 65535 entries"},
       {patched(10, "\x01"), "its end record puts a central directory of 1 bytes at"},
       {patched(6, "\x01"), "bytes at byte 1, but itself"},
       {patched(2, "\x01"), "something follows the record"}});
}

TEST(HostileTorchFile, EveryTruncationIsRefused) {
  const std::string good = good_file();
  EXPECT_EQ(parse_torch(good), 4);
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_THROW(parse_torch(good.substr(0, size)), CheckpointError) << size;
  }
}

// The checksum finds every flipped bit of the data and of the pickle; some fields of the records,
// as times, mean nothing.
TEST(HostileTorchFile, AFlippedBitIsRefusedOrChangesNothing) {
  const std::string good = good_file();
  int refused = 0;
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = good;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      try {
        EXPECT_EQ(parse_torch(flipped), 4) << "byte " << i << " bit " << bit;
      } catch (const CheckpointError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, static_cast<int>(good.size()) * 6);
}

TEST(HostileTorchFile, CannotMakeTheReaderAllocate) {
  const auto outcomes = run_ranks(1, [&](Rank& rank) {
    if (!limit_memory(64 << 20)) return rank.report("skipped");
    EXPECT_THROW(parse_torch(torch_bytes(
                     pickled_tensor(pickled_storage(kBytes, "0", 1 << 30), 0, {1 << 30}, {1}))),
                 CheckpointError);
    EXPECT_THROW(parse_torch(torch_bytes("X\xff\xff\xff\x7f")), CheckpointError);
  });
  if (outcomes[0].result == "skipped") GTEST_SKIP() << "a sanitizer has its own memory";
}

// Three bytes of the pickle make another storage of the same key.
std::string storages_of_key(const std::string& key, int count) {
  std::string pickle = "](" + pickled_storage(kBytes, key, 1);
  pickle.insert(pickle.size() - 1, std::string("q\0", 2));
  for (int i = 1; i < count; ++i) pickle += std::string("h\0Q", 3);
  return torch_bytes(pickle + "e");
}

// A zip64 archive of one entry with a directory of 64 GiB, nearly all a hole in the file.
TEST(HostileTorchFile, CannotAnnounceALargeDirectory) {
  constexpr std::uint64_t kSize = std::uint64_t{64} << 30;
  const TemporaryFolder folder;
  const auto path = folder.path() / "holes";
  const std::uint64_t offset = 30 + 10 + kPickle.size();
  folder.write("holes", zip_bytes({{"a/data.pkl", kPickle}}).substr(0, offset));
  std::filesystem::resize_file(path, offset + kSize);
  std::string end;
  zip::append(end, zip::kZip64EndRecord, std::uint64_t{44}, std::uint32_t{0}, std::uint32_t{0},
              std::uint32_t{0}, std::uint64_t{1}, std::uint64_t{1}, kSize, offset);
  zip::append(end, zip::kZip64Locator, std::uint32_t{0}, offset + kSize, std::uint32_t{1});
  zip::append(end, zip::kEndRecord, std::uint16_t{0}, std::uint16_t{0}, std::uint16_t{1},
              std::uint16_t{1}, zip::kIn64, static_cast<std::uint32_t>(offset), std::uint16_t{0});
  std::ofstream(path, std::ios::app | std::ios::binary) << end;
  const auto outcomes = run_ranks(1, [&](Rank& rank) {
    if (!limit_memory(64 << 20)) return rank.report("skipped");
    EXPECT_THAT([&] { read_torch_file(path); },
                ThrowsMessage<CheckpointError>(
                    HasSubstr("its central directory has 68719476736 bytes for 1 entries")));
  });
  if (outcomes[0].result == "skipped") GTEST_SKIP() << "a sanitizer has its own memory";
}

TEST(HostileTorchFile, StoragesThatAreBeyondMemoryTogetherAreAnError) {
  const std::string zeros(1 << 20, '\0');
  std::string pickle = "](";
  std::vector<ZippedFile> files;
  for (int i = 0; i < 40; ++i) {
    const std::string key = std::to_string(i);
    pickle += pickled_tensor(pickled_storage(kBytes, key, 1 << 20), 0, {1 << 20}, {1});
    files.push_back({"a/data/" + key, zeros});
  }
  files.insert(files.begin(), {"a/data.pkl", "\x80\x02" + pickle + "e."});
  const std::string bytes = zip_bytes(files);
  const auto outcomes = run_ranks(1, [&](Rank& rank) {
    if (!limit_memory(24 << 20)) return rank.report("skipped");
    EXPECT_THAT([&] { parse_torch(bytes); },
                ThrowsMessage<CheckpointError>(
                    HasSubstr("some-file: the sum of its entries takes 40.0 MiB, more memory")));
  });
  if (outcomes[0].result == "skipped") GTEST_SKIP() << "a sanitizer has its own memory";
}

// All these keys would share one bucket of libstdc++'s hash table, which has this many then.
// Each of the last 120,000 would be compared with every other: minutes.
TEST(HostileTorchFile, CannotChooseKeysThatCollide) {
  constexpr std::int64_t kBuckets = 351'061;
  std::string pickle = "}(";
  for (std::int64_t i = 1; i <= 300'000; ++i) {
    pickle += "\x8a\x08";
    zip::append(pickle, i * kBuckets);
    pickle += "N";
  }
  const std::string bytes = torch_bytes(pickle + "u");
  const TorchValue value = read_torch_file(as_bytes(bytes), "some-file");
  EXPECT_EQ(std::get<TorchValue::Dict>(value.data).size(), 300'000u);
}

TEST(HostileTorchFile, CannotRepeatAStoragesKeyInMemory) {
  expect_refused(
      {{storages_of_key(std::string(4097, 'k'), 1), "kkk...\" (4097 bytes), whose name is longer"},
       {storages_of_key("0", 250'001), "it refers to storages more than 250000 times"}});
  const std::string many = storages_of_key(std::string(4096, 'k'), 100'000);
  const auto outcomes = run_ranks(1, [&](Rank& rank) {
    if (!limit_memory(64 << 20)) return rank.report("skipped");
    EXPECT_THAT([&] { parse_torch(many); },
                ThrowsMessage<CheckpointError>(HasSubstr("(4096 bytes) stands alone")));
  });
  if (outcomes[0].result == "skipped") GTEST_SKIP() << "a sanitizer has its own memory";
}

}  // namespace
}  // namespace lockstep::testing
