// SPDX-License-Identifier: BSD-3-Clause
// Answers of HTTP servers, of broken ones, and of what is none.
#include "lockstep/core/net/http_post.h"

#include <chrono>
#include <string>

#include "support/canned_server.h"
#include "support/free_port.h"
#include <gmock/gmock.h>
#include <sys/eventfd.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::CannedServer;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Deadline in_time() {
  return Deadline::after(5s);
}

HttpPost ask(const CannedServer& server) {
  return {server.endpoint(), "/v3/kv/range", "{}", in_time()};
}

std::string body_of(const std::string& answer, bool closes = true) {
  const CannedServer server(answer, closes);
  return ask(server).body(in_time());
}

TEST(HttpPost, TakesTheBodyUntilTheEndOrItsLength) {
  EXPECT_EQ(body_of("HTTP/1.0 200 OK\r\n\r\n{\"a\":1}"), "{\"a\":1}");
  EXPECT_EQ(body_of("HTTP/1.1 200 OK\r\ncontent-LENGTH: 2\r\nX: y\r\n\r\n{}", false), "{}");
  EXPECT_EQ(body_of("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}and more"), "{}");
  EXPECT_EQ(body_of("HTTP/1.0 204 \r\n\r\n"), "");
}

TEST(HttpPost, TellsTheStatus) {
  const CannedServer server("HTTP/1.0 404 Not Found\r\n\r\nno");
  HttpPost post = ask(server);
  EXPECT_EQ(post.status(in_time()), 404);
  EXPECT_EQ(post.body(in_time()), "no");
}

TEST(HttpPost, TakesLinesAsTheyCome) {
  const CannedServer server("HTTP/1.0 200 OK\r\n\r\none\ntwo\nthr", false);
  HttpPost post = ask(server);
  EXPECT_EQ(post.line(in_time()), "one");
  EXPECT_EQ(post.line(in_time()), "two");
  EXPECT_THROW(post.line(Deadline::after(50ms)), TimeoutError);
  const UniqueFd bell(::eventfd(1, EFD_CLOEXEC));
  EXPECT_EQ(post.line(in_time(), bell.get()), std::nullopt);
}

TEST(HttpPost, NoticesAnAnswerThatIsCutOff) {
  for (const std::string answer :
       {"", "HTTP/1.0 200 OK\r\n", "HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n{}"}) {
    EXPECT_THROW(body_of(answer), ConnectionClosed) << answer;
  }
  const CannedServer server("HTTP/1.0 200 OK\r\n\r\none\ntw");
  HttpPost post = ask(server);
  EXPECT_EQ(post.line(in_time()), "one");
  EXPECT_THROW(post.line(in_time()), ConnectionClosed);
}

TEST(HttpPost, RefusesWhatIsNoAnswer) {
  for (const std::string& answer :
       {std::string("SSH-2.0-OpenSSH_9.2p1\r\n\r\n"), std::string("HTTP/1.0\r\n\r\n"),
        std::string("HTTP/1.0 abc\r\n\r\n"), std::string("HTTP/1.0 99 \r\n\r\n"),
        std::string("HTTP/2.0 200 OK\r\n\r\n"), std::string("\r\n\r\n"),
        std::string("HTTP/1.0 200 OK\r\nContent-Length: -1\r\n\r\n"),
        std::string("HTTP/1.0 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n"),
        std::string("HTTP/1.0 200 OK\r\nContent-Length: 2x\r\n\r\n{}"),
        std::string("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"),
        "HTTP/1.0 200 OK\r\nX: " + std::string(HttpPost::kMaxHead, 'x')}) {
    EXPECT_THAT([&] { body_of(answer); },
                ThrowsMessage<BackendError>(HasSubstr("does not answer as an HTTP server does")))
        << answer.substr(0, 60);
  }
}

TEST(HttpPost, LimitsWhatItTakes) {
  const std::string much(HttpPost::kMaxBody + (64 << 10), 'x');
  EXPECT_THAT([&] { body_of("HTTP/1.0 200 OK\r\n\r\n" + much); },
              ThrowsMessage<BackendError>(HasSubstr("it sends more than 8 MiB")));
  EXPECT_THAT([] { body_of("HTTP/1.0 200 OK\r\nContent-Length: 8388609\r\n\r\n"); },
              ThrowsMessage<BackendError>(HasSubstr("it sends more than 8 MiB")));
  const CannedServer server("HTTP/1.0 200 OK\r\n\r\n" + much);
  EXPECT_THAT([&] { ask(server).line(in_time()); },
              ThrowsMessage<BackendError>(HasSubstr("it sends a line of more than 8 MiB")));
}

TEST(HttpPost, WaitsNoLongerThanTheDeadline) {
  const CannedServer silent("", false);
  EXPECT_THAT([&] { ask(silent).status(Deadline::after(50ms)); },
              ThrowsMessage<TimeoutError>(HasSubstr("did not answer within 0.1 s")));
  const Endpoint nobody{"127.0.0.1", static_cast<std::uint16_t>(testing::free_port())};
  EXPECT_THROW(HttpPost(nobody, "/", "{}", in_time()), ConnectionRefused);
}

}  // namespace
}  // namespace lockstep
