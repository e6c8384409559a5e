package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// call is a raw HTTP request, for what client-go would hide.
type call struct {
	method string
	path   string
	header http.Header
	body   string
}

// do sends the call with the credentials of config and returns code and body.
func do(t *testing.T, config *rest.Config, c call) (int, []byte) {
	t.Helper()
	code, body, err := send(t.Context(), config, c)
	require.NoError(t, err)
	return code, body
}

func send(ctx context.Context, config *rest.Config, c call) (int, []byte, error) {
	transport, err := rest.TransportFor(config)
	if err != nil {
		return 0, nil, err
	}
	if c.method == "" {
		c.method = http.MethodGet
	}
	request, err := http.NewRequestWithContext(ctx, c.method, config.Host+c.path, bytes.NewBufferString(c.body))
	if err != nil {
		return 0, nil, err
	}
	maps.Copy(request.Header, c.header)
	response, err := transport.RoundTrip(request)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, body, err
}

// initialEvents watches the path, which ends with a query, and returns what comes up to the
// bookmark after the initial state.
func initialEvents(t *testing.T, config *rest.Config, path string) string {
	t.Helper()
	transport, err := rest.TransportFor(config)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+path+"watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan", nil)
	require.NoError(t, err)
	response, err := transport.RoundTrip(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	require.Equal(t, http.StatusOK, response.StatusCode)
	var events strings.Builder
	for reader := bufio.NewReader(response.Body); ; {
		event, err := reader.ReadString('\n')
		require.NoError(t, err, "%s", events.String())
		events.WriteString(event)
		if strings.Contains(event, metav1.InitialEventsAnnotationKey) {
			return events.String()
		}
	}
}

// refused sends the call, and holds that the answer is a Status of that code
// with a message.
func refused(t *testing.T, config *rest.Config, c call, code int) metav1.Status {
	t.Helper()
	got, body := do(t, config, c)
	require.Equal(t, code, got, "%s", body)
	var status metav1.Status
	require.NoError(t, json.Unmarshal(body, &status), "the answer is no Status: %s", body)
	require.Equal(t, "Status", status.Kind)
	require.Equal(t, code, int(status.Code))
	require.NotEmpty(t, status.Message)
	return status
}

// nobody returns config without credentials.
func nobody(config *rest.Config) *rest.Config { return rest.AnonymousClientConfig(config) }

// withToken returns config with a bearer token for its only credentials.
func withToken(config *rest.Config, token string) *rest.Config {
	config = rest.AnonymousClientConfig(config)
	config.BearerToken = token
	return config
}

// at returns config for another server.
func at(config *rest.Config, host string) *rest.Config {
	config = rest.CopyConfig(config)
	config.Host = host
	return config
}
