package harness

import (
	"context"
	"io"
	"maps"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// Create creates an object with a typed client, and fails the test if it cannot.
func Create[T any](t testing.TB, c interface {
	Create(ctx context.Context, obj T, o metav1.CreateOptions) (T, error)
}, obj T) T {
	t.Helper()
	created, err := c.Create(t.Context(), obj, metav1.CreateOptions{})
	require.NoError(t, err)
	return created
}

// Get returns an object, which must exist.
func Get[T any](t testing.TB, c interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (T, error)
}, name string) T {
	t.Helper()
	obj, err := c.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return obj
}

// List returns a list of objects.
func List[T any](t testing.TB, c interface {
	List(ctx context.Context, o metav1.ListOptions) (T, error)
}, o metav1.ListOptions) T {
	t.Helper()
	list, err := c.List(t.Context(), o)
	require.NoError(t, err)
	return list
}

// NewFactory returns a client factory. Its connections are closed when the test ends.
func NewFactory(t testing.TB, config *rest.Config) *client.Factory {
	t.Helper()
	f, err := client.NewFactory(config)
	require.NoError(t, err)
	t.Cleanup(f.CloseIdleConnections)
	return f
}

// Clientset returns a clientset for a logical cluster, or for the host of config if cluster is "".
func Clientset(t testing.TB, config *rest.Config, cluster string) *kubernetes.Clientset {
	t.Helper()
	if cluster != "" {
		config = In(config, cluster)
	}
	c, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return c
}

// Workspace creates a workspace on a shard, waits until it is Ready, and returns its logical cluster.
func Workspace(t testing.TB, proxy *client.Factory, parent, name, shard string) logicalcluster.Name {
	t.Helper()
	in := kinds.Workspaces.In(proxy.Cluster(logicalcluster.NewPath(parent)))
	ws := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	ws.Spec.Location = &tenancyv1alpha1.WorkspaceLocation{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": shard}}}
	Create(t, in, ws)
	require.Eventually(t, func() bool {
		var err error
		ws, err = in.Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && ws.Status.Phase == corev1alpha1.LogicalClusterPhaseReady
	}, 2*StartTimeout, 10*time.Millisecond, "workspace %s:%s did not become Ready", parent, name)
	return logicalcluster.Name(ws.Spec.Cluster)
}

// Send sends a request with the credentials of config, and returns the status code and the body of the response.
func Send(ctx context.Context, config *rest.Config, method, path string, header http.Header, body string) (int, []byte, error) {
	transport, err := rest.TransportFor(config)
	if err != nil {
		return 0, nil, err
	}
	request, err := http.NewRequestWithContext(ctx, method, config.Host+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	maps.Copy(request.Header, header)
	response, err := transport.RoundTrip(request)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	return response.StatusCode, content, err
}

// ReadFile returns the content of a file.
func ReadFile(t testing.TB, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(name)
	require.NoError(t, err)
	return content
}
