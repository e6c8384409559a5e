package robustness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
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
	// valueAnnotation and colour carry what the history calls value and label.
	valueAnnotation = "robustness.shardplane.io/value"
	colour          = "colour"
)

// conn is a connection to a server, as plain as can be: what is recorded is
// what was on the wire. Where the server has several replicas, its requests
// take turns at them: what one said is put to the other.
type conn struct {
	client *http.Client
	hosts  []string
	turn   atomic.Uint32
}

// newConn connects to a server that has these replicas.
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

func (c *conn) host() string {
	n := int(c.turn.Add(1))
	return c.hosts[n%len(c.hosts)]
}

// open sends a request and returns the answer, whose body the caller closes.
func (c *conn) open(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, c.host()+path, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	return c.client.Do(request)
}

// do sends a request and returns code and body.
func (c *conn) do(ctx context.Context, method, path string, body any) (int, []byte, error) {
	response, err := c.open(ctx, method, path, body)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err != nil { // a code whose answer was cut off says nothing
		return 0, nil, err
	}
	return response.StatusCode, answer, nil
}

// object is what is written and read of any kind.
type object struct {
	APIVersion string            `json:"apiVersion,omitempty"`
	Kind       string            `json:"kind,omitempty"`
	Metadata   metav1.ObjectMeta `json:"metadata"`
}

// list is what is read of any list.
type list struct {
	Metadata metav1.ListMeta `json:"metadata"`
	Items    []object        `json:"items"`
}

// seen is the object as the history has it.
func (o object) seen(d history.Domain) (history.Object, error) {
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

// watchEvent is an event as it comes.
type watchEvent struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// expired says that a watch or list is too old.
func expired(code int) bool { return code == http.StatusGone }
