package controllers_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
)

// requestsFor matches requests for kinds with objects that should be deleted without requests.
var requestsFor = regexp.MustCompile(`(?m)^apiserver_request_total\{.*resource="(configmaps|secrets|serviceaccounts|clusterrolebindings)".*verb="(DELETE|DELETECOLLECTION)".*$`)

func requestsAbout(t *testing.T, shard *client.Factory) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, shard.Host()+"/metrics", nil)
	require.NoError(t, err)
	response, err := shard.HTTPClient().Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	metrics, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Contains(t, string(metrics), "apiserver_request_total{")
	return strings.Join(requestsFor.FindAllString(string(metrics), -1), "\n")
}

// TestDeletionWithoutRequests: ConfigMaps, accounts and RBAC objects of a deleted workspace are deleted in the storage.
func TestDeletionWithoutRequests(t *testing.T) {
	e := start(t)
	root := e.at(0, "root")
	create(t, root, on("shard-1", named("plain")))
	inside := e.at(1, awaitReady(t, root, "plain").Spec.Cluster)
	await(t, "the default service account", func(ctx context.Context) error {
		_, err := kinds.ServiceAccounts.InNamespace(inside, "default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	for n := range 150 {
		harness.Create(t, kinds.ConfigMaps.InNamespace(inside, "default"), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(n)}})
	}
	before := requestsAbout(t, e.shards[1])
	require.NoError(t, kinds.Workspaces.In(root).Delete(t.Context(), "plain", metav1.DeleteOptions{}))
	awaitDeleted(t, root, "plain")
	require.Equal(t, before, requestsAbout(t, e.shards[1]))
	remaining := harness.List(t, kinds.ConfigMaps.In(inside), metav1.ListOptions{})
	require.Empty(t, remaining.Items)
}
