package kit

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/test/harness"
)

// WithClientCert returns config with a client certificate as its only credentials.
func WithClientCert(config *rest.Config, pair *pki.Pair) *rest.Config {
	config = rest.AnonymousClientConfig(config)
	config.CertFile, config.KeyFile = pair.CertFile, pair.KeyFile
	return config
}

// Request is a raw HTTP request.
type Request struct {
	Method string
	Path   string
	Header http.Header
	Body   string
}

// Do sends the request with the credentials of config and returns status code and body.
func Do(t *testing.T, config *rest.Config, c Request) (int, []byte) {
	t.Helper()
	code, body, err := Send(t.Context(), config, c)
	require.NoError(t, err)
	return code, body
}

// Send is Do for goroutines, which must not fail the test.
func Send(ctx context.Context, config *rest.Config, c Request) (int, []byte, error) {
	return harness.Send(ctx, config, cmp.Or(c.Method, http.MethodGet), c.Path, c.Header, c.Body)
}

// RequireCode sends the request, requires the status code, and returns the body of the response.
func RequireCode(t *testing.T, config *rest.Config, c Request, code int) []byte {
	t.Helper()
	got, body := Do(t, config, c)
	require.Equal(t, code, got, "%s %s: %s", c.Method, c.Path, body)
	return body
}

// RequireStatus sends the request and requires that the response is a Status with the code and a message.
func RequireStatus(t *testing.T, config *rest.Config, c Request, code int) metav1.Status {
	t.Helper()
	body := RequireCode(t, config, c, code)
	var status metav1.Status
	require.NoError(t, json.Unmarshal(body, &status), "the response is not a Status: %s", body)
	require.Equal(t, "Status", status.Kind)
	require.Equal(t, code, int(status.Code))
	require.NotEmpty(t, status.Message)
	return status
}

// Anonymous returns config without credentials.
func Anonymous(config *rest.Config) *rest.Config { return rest.AnonymousClientConfig(config) }

// WithToken returns config with a bearer token as its only credentials.
func WithToken(config *rest.Config, token string) *rest.Config {
	config = rest.AnonymousClientConfig(config)
	config.BearerToken = token
	return config
}

// AtHost returns config for another server.
func AtHost(config *rest.Config, host string) *rest.Config {
	config = rest.CopyConfig(config)
	config.Host = host
	return config
}

// JSONRequest returns a request with a JSON body.
func JSONRequest(method, path, body string) Request {
	return Request{Method: method, Path: path, Body: body, Header: http.Header{"Content-Type": {"application/json"}}}
}

// ShardRange returns a shard selector from one quarter of the ring to another, e.g. from 0 to 2 for the lower half.
func ShardRange(by string, from, to int) string {
	bound := func(quarter int) string {
		if quarter == 4 {
			return "0x10000000000000000"
		}
		return fmt.Sprintf("0x%x000000000000000", 4*quarter)
	}
	return fmt.Sprintf("shardRange(object.metadata.%s, '%s', '%s')", by, bound(from), bound(to))
}
