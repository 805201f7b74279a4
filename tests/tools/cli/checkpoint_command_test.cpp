// SPDX-License-Identifier: BSD-3-Clause
// `lockstep checkpoint` as a user runs it. Most files are written by hand: this test links no
// libtorch.
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/safetensors_bytes.h"
#include "checkpoint/torch_bytes.h"
#include "support/program.h"
#include "support/temporary_folder.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

Ended run_checkpoint(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {LOCKSTEP_PROGRAM, "checkpoint"});
  return testing::run_to_end(arguments);
}

const std::string kTwoFloats("\0\0\x80\x3f\0\0\0\x40", 8);  // 1, 2
// printf '\0\0\200\77\0\0\0\100' | sha256sum
const std::string kHash = "b9c80b5adeca450753a16950c3cc655d271f7bef7a485bc83f112b72fef21d37";

std::string safetensors_with(const std::string& name, const std::string& data = kTwoFloats) {
  return safetensors_bytes("{\"__metadata__\":{\"format\":\"pt\"},\"" + name +
                               R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                           data);
}

std::string state_in_part(const std::string& part) {
  return torch_bytes(
      "}" + pickled(part) + "}" + pickled("w") +
          pickled_tensor(pickled_storage("torch\nFloatStorage", "0", 2), 0, {2}, {1}) + "s" + "s",
      kTwoFloats);
}

std::vector<std::string> names_of_steps(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("step-")) names.push_back(entry.path());
  }
  return names;
}

class CheckpointCommand : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }
  std::string write(const std::string& name, const std::string& bytes) const {
    folder_.write(name, bytes);
    return file(name);
  }
  TemporaryFolder folder_;
};

TEST_F(CheckpointCommand, InspectsBothFormatsAlike) {
  for (const auto& [name, bytes] : {std::pair("net.safetensors", safetensors_with("w")),
                                    std::pair("safetensors-by-its-name", state_in_part("model"))}) {
    const auto path = write(name, bytes);
    const Ended text = run_checkpoint({"inspect", path});
    EXPECT_EQ(text.code, 0) << text.err;
    EXPECT_THAT(text.out,
                AllOf(HasSubstr("w\"  "), HasSubstr("float32    [2]      8\n    " + kHash),
                      HasSubstr("1 tensors, 2 elements, 8 bytes")));
    const Ended json = run_checkpoint({"inspect", path, "--json"});
    const auto tensor = Json::parse(json.out)["tensors"].at(0);
    EXPECT_EQ(tensor["dtype"], "float32");
    EXPECT_EQ(tensor["shape"], Json::array({2}));
    EXPECT_EQ(tensor["bytes"], 8);
    EXPECT_EQ(tensor["sha256"], kHash);
  }
  const auto json = Json::parse(run_checkpoint({"inspect", file("net.safetensors"), "--json"}).out);
  EXPECT_EQ(json["format"], "safetensors");
  EXPECT_EQ(json["metadata"]["format"], "pt");
  EXPECT_EQ(json["bytes"], 8);
}

TEST_F(CheckpointCommand, VerifiesWholeFiles) {
  const Ended good = run_checkpoint({"verify", write("good", state_in_part("model"))});
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_THAT(good.out, HasSubstr("good: torch, 1 tensors, nothing is wrong"));
  std::string damaged = state_in_part("model");
  const auto data = damaged.find(kTwoFloats);
  damaged[data] = 'x';
  const Ended flipped = run_checkpoint({"verify", write("damaged", damaged)});
  EXPECT_EQ(flipped.code, 1);
  EXPECT_THAT(flipped.err, HasSubstr("damaged: entry \"a/data/0\": its data is damaged"));
  const Ended cut = run_checkpoint({"verify", write("cut", safetensors_with("w", "1234"))});
  EXPECT_EQ(cut.code, 1);
  EXPECT_THAT(cut.err, HasSubstr("cut: entry \"w\": its data_offsets are [0, 8]"));
  const Ended other = run_checkpoint({"verify", write("other", "this is a text of some length")});
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.err, HasSubstr("other: its first 8 bytes announce"));
}

TEST_F(CheckpointCommand, ReadsShardedFilesByTheirIndex) {
  write("part-1", safetensors_with("w"));
  write("part-2", safetensors_with("v"));
  const auto index = write("model.safetensors.index.json",
                           R"({"metadata": {}, "weight_map": {"w": "part-1", "v": "part-2"}})");
  const Ended text = run_checkpoint({"inspect", index});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("index.json: safetensors, in 2 files\n"),
                              HasSubstr("2 tensors, 4 elements, 16 bytes")));
  EXPECT_THAT(run_checkpoint({"verify", index}).out,
              HasSubstr("safetensors in 2 files, 2 tensors, nothing is wrong\n"));
  EXPECT_EQ(run_checkpoint({"export", index, file("whole.pt")}).code, 0);
  EXPECT_EQ(run_checkpoint({"diff", index, file("whole.pt")}).code, 0);
  EXPECT_THAT(run_checkpoint({"inspect", folder_.path()}).err,
              HasSubstr("or a file of tensors, such as " + index));
  std::filesystem::remove(file("part-2"));
  const Ended missing = run_checkpoint({"verify", index});
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.err, HasSubstr("of the 2 files that it names, 1 is missing: \"part-2\""));
}

TEST_F(CheckpointCommand, ListsTensorsOfTypesThatNobodyKnows) {
  const std::string header = R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                             R"("p":{"dtype":"F4","shape":[2,4],"data_offsets":[4,8]}})";
  const auto path = write("packed", safetensors_bytes(header, kTwoFloats));
  const Ended text = run_checkpoint({"inspect", path});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("float32"), HasSubstr("\"F4\""), HasSubstr("[2, 4]"),
                              HasSubstr("2 tensors, 9 elements, 8 bytes\n1 of types that this")));
  const auto tensors = Json::parse(run_checkpoint({"inspect", path, "--json"}).out)["tensors"];
  EXPECT_FALSE(tensors.at(0).contains("readable"));
  EXPECT_EQ(tensors.at(1)["readable"], false);
  EXPECT_EQ(tensors.at(1)["dtype"], "F4");
  EXPECT_THAT(run_checkpoint({"verify", path}).out, HasSubstr("1 are of types that this libtorch"));
  EXPECT_EQ(run_checkpoint({"diff", path, path}).code, 0);
  const std::string other_bytes("\0\0\x80\x3f\0\1\0\x40", 8);
  const auto other = write("other", safetensors_bytes(header, other_bytes));
  EXPECT_EQ(run_checkpoint({"diff", path, other}).out,
            "values \"p\": 1 of 4 elements differ, by at most 1\n");
  const Ended exported = run_checkpoint({"export", path, file("packed.pt")});
  EXPECT_EQ(exported.code, 1);
  EXPECT_THAT(exported.err, HasSubstr("entry \"p\" has elements of type \"F4\""));
}

TEST_F(CheckpointCommand, NamesWhatIsNoFileOfTensors) {
  const std::vector<std::pair<std::string, std::string>> files{
      {"abc", "it has 3 bytes, too few for a file of tensors; copy or download it again"},
      {"", "it has 0 bytes, too few for a file of tensors"},
      {R"({"architectures": ["Llama"]})", "without a weight_map, so it is no index"},
      {"GGUF\x03 and much more text", "it is a GGUF file (llama.cpp)"}};
  for (const auto& [bytes, message] : files) {
    const Ended ended = run_checkpoint({"verify", write("some.pt", bytes)});
    EXPECT_EQ(ended.code, 1) << message;
    EXPECT_THAT(ended.err, HasSubstr(message));
  }
}

TEST_F(CheckpointCommand, ComparesFilesOfEitherFormat) {
  const auto first = write("first", safetensors_with("w"));
  const auto part = write("part.pt", state_in_part("model"));
  const Ended same = run_checkpoint({"diff", first, part, "--part", "model"});
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_EQ(same.out, "the files have the same tensors\n");

  const std::string one_and_five("\0\0\x80\x3f\0\0\xa0\x40", 8);
  const auto second = write("second", safetensors_with("w", one_and_five));
  const Ended values = run_checkpoint({"diff", first, second});
  EXPECT_EQ(values.code, 1);
  EXPECT_EQ(values.out, "values \"w\": 1 of 2 elements differ, by at most 3\n");

  const Ended names = run_checkpoint({"diff", first, write("v", safetensors_with("v"))});
  EXPECT_EQ(names.code, 1);
  EXPECT_EQ(names.out, "missing \"w\"\nunexpected \"v\"\n");

  const auto integer = write(
      "integer",
      safetensors_bytes(R"({"w":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})", kTwoFloats));
  const Ended kinds = run_checkpoint({"diff", first, integer});
  EXPECT_EQ(kinds.out, "shape \"w\": [2] and [1]\ndtype \"w\": float32 and int64\n");

  const auto json = Json::parse(run_checkpoint({"diff", first, second, "--json"}).out);
  EXPECT_EQ(json["same"], false);
  EXPECT_EQ(json["differences"].at(0)["kind"], "values");
  EXPECT_EQ(json["differences"].at(0)["differing"], 1);
  EXPECT_EQ(json["differences"].at(0)["largest"], 3.0);
}

TEST_F(CheckpointCommand, TakesANanForEqualToItselfOnly) {
  const std::string nan_and_two("\0\0\xc0\x7f\0\0\0\x40", 8);
  const auto first = write("first", safetensors_with("w", nan_and_two));
  const Ended same = run_checkpoint({"diff", first, first});
  EXPECT_EQ(same.code, 0) << same.out;
  const auto second = write("second", safetensors_with("w"));
  const Ended differ = run_checkpoint({"diff", first, second});
  EXPECT_EQ(differ.out, "values \"w\": 1 of 2 elements differ, by at most nan\n");
  const auto json = Json::parse(run_checkpoint({"diff", first, second, "--json"}).out);
  EXPECT_TRUE(json["differences"].at(0)["largest"].is_null());
}

// Of eight bytes.
std::string one_element(const std::string& type, std::uint64_t bytes) {
  std::string data;
  zip::append(data, bytes);
  return safetensors_bytes(
      "{\"w\":{\"dtype\":\"" + type + R"(","shape":[1],"data_offsets":[0,8]}})", data);
}

TEST_F(CheckpointCommand, SubtractsIntegersExactly) {
  constexpr std::uint64_t kMost = ~std::uint64_t{0};
  const std::vector<std::tuple<std::uint64_t, std::uint64_t, std::string>> pairs{
      {(std::uint64_t{1} << 53) + 1, std::uint64_t{1} << 53, "1"},
      {kMost >> 1, (kMost >> 1) + 1, "18446744073709551615"}};  // the largest and the least
  for (const auto& [left, right, distance] : pairs) {
    const auto first = write("first", one_element("I64", left));
    const auto second = write("second", one_element("I64", right));
    EXPECT_EQ(run_checkpoint({"diff", first, second}).out,
              "values \"w\": 1 of 1 elements differ, by at most " + distance + "\n");
    const auto json = run_checkpoint({"diff", first, second, "--json"}).out;
    EXPECT_EQ(Json::parse(json)["differences"].at(0)["largest"].dump(), distance);
  }
}

TEST_F(CheckpointCommand, ComparesPartsOfComplexNumbers) {
  // The real part is NaN, the imaginary one 1 and 2.
  const auto first = write("first", one_element("C64", 0x3f800000'7fc00000));
  const auto second = write("second", one_element("C64", 0x40000000'7fc00000));
  EXPECT_EQ(run_checkpoint({"diff", first, first}).code, 0);
  EXPECT_EQ(run_checkpoint({"diff", first, second}).out,
            "values \"w\": 1 of 1 elements differ, by at most 1\n");
}

TEST_F(CheckpointCommand, ConvertsBothWays) {
  const auto part = write("part.pt", state_in_part("model"));
  EXPECT_EQ(run_checkpoint({"export", part, file("net.safetensors"), "--part", "model"}).code, 0);
  EXPECT_EQ(run_checkpoint({"export", file("net.safetensors"), file("net.pt")}).code, 0);
  const Ended same = run_checkpoint({"diff", file("net.safetensors"), file("net.pt")});
  EXPECT_EQ(same.code, 0) << same.out << same.err;
  EXPECT_THAT(run_checkpoint({"inspect", file("net.pt")}).out, HasSubstr("net.pt: torch\n"));
}

TEST_F(CheckpointCommand, ExportsTheFormatThatTheNewNameSays) {
  const auto net = write("net", safetensors_with("w"));
  EXPECT_EQ(run_checkpoint({"export", net, file("copy.safetensors")}).out,
            file("copy.safetensors") + ": 1 tensor\n");
  const auto copy =
      Json::parse(run_checkpoint({"inspect", file("copy.safetensors"), "--json"}).out);
  EXPECT_EQ(copy["format"], "safetensors");
  EXPECT_EQ(copy["metadata"]["format"], "pt");
  for (const char* name : {"net.pt", "net.pth", "net.bin"}) {
    EXPECT_EQ(run_checkpoint({"export", net, file(name)}).code, 0);
    EXPECT_THAT(run_checkpoint({"inspect", file(name)}).out, HasSubstr(": torch\n")) << name;
  }
}

TEST_F(CheckpointCommand, SaysHowManyValuesAnExportLeavesOut) {
  const auto net = write("net", safetensors_with("w"));
  EXPECT_EQ(run_checkpoint({"export", net, file("net.pt")}).out,
            file("net.pt") + ": 1 tensor; 1 other value of " + net + " was left out\n");
  EXPECT_EQ(run_checkpoint({"export", file("net.pt"), file("again")}).out,
            file("again") + ": 1 tensor\n");
  const auto epoch = write("epoch.pt", torch_bytes("}(" + pickled("epoch") + pickled(3) +
                                                   pickled("flags") + "]" + "(" + "\x88Neu"));
  EXPECT_EQ(run_checkpoint({"export", epoch, file("none")}).out,
            file("none") + ": 0 tensors; 3 other values of " + epoch + " were left out\n");
}

TEST_F(CheckpointCommand, LooksIntoCheckpointsOfATraining) {
  const std::string folder = file("checkpoints");
  Program training({LOCKSTEP_PROGRAM, "train", "linear", "--device", "cpu", "--ranks", "2",
                    "--epochs", "2", "--checkpoint-dir", folder});
  ASSERT_EQ(training.wait(), 0) << training.err();
  const Ended text = run_checkpoint({"inspect", folder});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("checkpoint of step "), HasSubstr("saved by 2 ranks"),
                              HasSubstr("\"model.safetensors\""), HasSubstr("float32")));
  const Ended json = run_checkpoint({"inspect", folder + "/latest", "--json"});
  const auto described = Json::parse(json.out);
  EXPECT_EQ(described["manifest"]["ranks"], 2);
  const auto name = described["files"].at(0)["name"].get<std::string>();
  Program hashed({"sha256sum", folder + "/latest/" + name});
  EXPECT_EQ(hashed.wait(), 0);
  EXPECT_EQ(described["files"].at(0)["sha256"], hashed.out().substr(0, 64));

  EXPECT_EQ(run_checkpoint({"diff", folder, folder + "/latest"}).code, 0);
  const Ended exported = run_checkpoint({"export", folder, file("net.pt")});
  EXPECT_EQ(exported.code, 0) << exported.err;
  EXPECT_EQ(run_checkpoint({"diff", folder, file("net.pt")}).code, 0);
  EXPECT_THAT(run_checkpoint({"export", file(""), file("none.pt")}).err,
              HasSubstr("neither a manifest.json nor folders such as step-"));
  const auto steps = names_of_steps(folder);
  ASSERT_EQ(steps.size(), 2u);
  const Ended diff = run_checkpoint({"diff", steps[0], steps[1]});
  EXPECT_EQ(diff.code, 1) << diff.err;
  EXPECT_THAT(diff.out, HasSubstr("values \"model.safetensors: 0.weight\": 1 of 1 elements"));

  const Ended good = run_checkpoint({"verify", folder});
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_EQ(occurrences(good.out, "nothing is wrong\n"), 2);
  std::fstream(folder + "/latest/model.safetensors", std::ios::in | std::ios::out).put('x');
  const Ended damaged = run_checkpoint({"verify", folder});
  EXPECT_EQ(damaged.code, 1);
  EXPECT_EQ(occurrences(damaged.out, "nothing is wrong\n"), 1);
  EXPECT_EQ(occurrences(damaged.out, "model.safetensors is damaged: its SHA-256"), 1);
  EXPECT_EQ(run_checkpoint({"verify", folder + "/latest"}).code, 1);
  EXPECT_EQ(run_checkpoint({"inspect", folder, "--part", "model"}).code, 2);
}

TEST_F(CheckpointCommand, RefusesWrongUse) {
  const auto net = write("net", safetensors_with("w"));
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong{
      {{}, "subcommand"},
      {{"inspect"}, "FILE is required (see lockstep checkpoint inspect --help)"},
      {{"diff", net}, "SECOND is required"},
      {{"inspect", net, "--part", "model"}, "a safetensors file has no parts"},
      {{"inspect", file("absent")}, "absent: there is no such file"},
      {{"verify", folder_.path().string()}, "neither a manifest.json nor folders such as step-"},
      {{"export", net, file("net.onnx")}, "no format is known by the extension .onnx"},
      {{"export", net, file("absent/net.pt")}, "cannot write"}};
  for (const auto& [arguments, message] : wrong) {
    const Ended ended = run_checkpoint(arguments);
    EXPECT_EQ(ended.code, 2) << message;
    EXPECT_THAT(ended.err, HasSubstr(message));
  }
  const Ended part =
      run_checkpoint({"inspect", write("part", state_in_part("model")), "--part", "ema", "--json"});
  EXPECT_EQ(part.code, 1);
  const auto error = Json::parse(part.out)["error"];
  EXPECT_EQ(error["kind"], "checkpoint");
  EXPECT_THAT(error["message"].get<std::string>(),
              HasSubstr("the part \"ema\" is not a dict of names and tensors; these parts are: "
                        "\"model\""));
}

}  // namespace
}  // namespace lockstep::testing
