package robustness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/robustness/history"
)

const (
	// valueAnnotation and colour contain the value and the label of the history.
	valueAnnotation = "robustness.shardplane.io/value"
	colour          = "colour"
)

// conn is an HTTP client of a server. It does not interpret responses, so that they are recorded
// unchanged. Requests alternate between the replicas of the server.
type conn struct {
	client *http.Client
	hosts  []string
	turn   atomic.Uint32
}

// newConn returns a client of a server with these replicas.
func newConn(t *testing.T, replicas ...*rest.Config) *conn {
	t.Helper()
	client, err := rest.HTTPClientFor(replicas[0])
	require.NoError(t, err)
	t.Cleanup(client.CloseIdleConnections)
	c := &conn{client: client}
	for _, config := range replicas {
		c.hosts = append(c.hosts, strings.TrimSuffix(config.Host, "/"))
	}
	return c
}

// open sends a request and returns the response. The caller closes its body.
func (c *conn) open(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	host := c.hosts[int(c.turn.Add(1))%len(c.hosts)]
	request, err := http.NewRequestWithContext(ctx, method, host+path, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	return c.client.Do(request)
}

// do sends a request and returns the status code and the body.
func (c *conn) do(ctx context.Context, method, path string, body any) (int, []byte, error) {
	response, err := c.open(ctx, method, path, body)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	if err != nil { // the response was cut off
		return 0, nil, err
	}
	return response.StatusCode, content, nil
}

// object contains the fields of objects that the test uses.
type object struct {
	APIVersion string            `json:"apiVersion,omitempty"`
	Kind       string            `json:"kind,omitempty"`
	Metadata   metav1.ObjectMeta `json:"metadata"`
}

// list contains the fields of lists that the test uses.
type list struct {
	Metadata metav1.ListMeta `json:"metadata"`
	Items    []object        `json:"items"`
}

// historyObject converts the object to the type of the history.
func (o object) historyObject(d history.Domain) (history.Object, error) {
	rv, err := strconv.ParseUint(o.Metadata.ResourceVersion, 10, 64)
	if err != nil {
		return history.Object{}, fmt.Errorf("%s %s: %w", d.Resource, o.Metadata.Name, err)
	}
	key := history.Key{Cluster: o.Metadata.Annotations["kcp.io/cluster"], Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}
	if d.Server == cacheServer {
		key.Shard = o.Metadata.Annotations["kcp.io/shard"]
	}
	return history.Object{Key: key, State: history.State{
		RV:    rv,
		UID:   string(o.Metadata.UID),
		Value: o.Metadata.Annotations[valueAnnotation],
		Label: o.Metadata.Labels[colour],
	}}, nil
}

type watchEvent struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// statusError is an error response.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return fmt.Sprintf("%d: %s", e.code, e.text) }

// isExpired reports whether the resource version of a watch has expired.
func isExpired(err error) bool {
	var status *statusError
	return errors.As(err, &status) && status.code == http.StatusGone
}

// list sends a list request for a logical cluster, or for all of them, and records an error response.
func (c *conn) list(ctx context.Context, rec *recorder, cluster, path string, query url.Values) (*list, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*opTimeout)
	defer cancel()
	code, response, err := c.do(ctx, http.MethodGet, path+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	if code != http.StatusOK {
		rec.errorResponse(cluster, response)
		return nil, &statusError{code, string(response)}
	}
	got := &list{}
	return got, json.Unmarshal(response, got)
}
