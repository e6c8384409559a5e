package workspace

import (
	"context"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

const eventually = 30 * time.Second

type keyQueue chan client.Key

func (q keyQueue) Add(key client.Key)                       { q <- key }
func (q keyQueue) AddAfter(key client.Key, _ time.Duration) { q <- key }

func (keyQueue) Drop(client.Key) {}

func ownedCluster(name, workspace, ownerShard string) *corev1alpha1.LogicalCluster {
	return &corev1alpha1.LogicalCluster{
		ObjectMeta: metav1.ObjectMeta{
			Name: corev1alpha1.LogicalClusterName, Annotations: map[string]string{logicalcluster.AnnotationKey: name},
			Labels: map[string]string{tenancy.OwnerShardLabel: ownerShard},
		},
		Spec: corev1alpha1.LogicalClusterSpec{Owner: &corev1alpha1.LogicalClusterOwner{
			APIVersion: tenancyv1alpha1.SchemeGroupVersion.String(), Resource: "workspaces", Name: workspace, Cluster: "parent",
		}},
	}
}

func TestSitesFollowTheRegisteredShards(t *testing.T) {
	shardsOf := func(name, url string) *corev1alpha1.Shard {
		s := shard(name)
		s.Annotations = map[string]string{logicalcluster.AnnotationKey: "root"}
		s.Spec.BaseURL = url
		return s
	}
	localClusters, there, moved := clienttest.New(t, kinds.Scheme), clienttest.New(t, kinds.Scheme), clienttest.New(t, kinds.Scheme)
	local, err := client.NewFactory(localClusters.ClientConfig())
	require.NoError(t, err)
	defer local.CloseIdleConnections()
	localClusters.Put(t, kinds.Shards.GroupVersionResource, shardsOf("here", localClusters.URL))
	localClusters.Put(t, kinds.Shards.GroupVersionResource, shardsOf("there", there.URL))
	there.Put(t, kinds.LogicalClusters.GroupVersionResource, ownedCluster("one", "ours", "here"))
	there.Put(t, kinds.LogicalClusters.GroupVersionResource, ownedCluster("two", "others", "elsewhere"))

	shards := kinds.Shards.Informer(local.Cluster(logicalcluster.NewPath("root")), client.InformerOptions[*corev1alpha1.Shard]{})
	clusters := kinds.LogicalClusters.Informer(local.Wildcard(), client.InformerOptions[*corev1alpha1.LogicalCluster]{})
	book := peers.NewPeerBook(peers.Config{Self: "here", Local: local, Shards: shards, Access: &rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}}})
	s := &sites{self: "here", local: localSite(book, "here", clusters), peers: book}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- shards.Run(ctx) }()
	go func() { ended <- book.Run(ctx) }()
	require.NoError(t, shards.WaitForSync(ctx))

	queue := make(keyQueue, 100)
	stop, err := s.watch(ctx, queue)
	require.NoError(t, err)
	expect := func(workspace string) {
		t.Helper()
		require.Eventually(t, func() bool { return len(queue) > 0 }, eventually, time.Millisecond, workspace)
		require.Equal(t, "parent|"+workspace, (<-queue).String())
	}
	expect("ours")
	require.Nil(t, s.remote.get("here"), "the local shard must not be watched as a remote one")
	own, err := s.at("here")
	require.NoError(t, err)
	require.Same(t, s.local, own)
	other, err := s.at("there")
	require.NoError(t, err)
	_, found := other.cached("one")
	require.True(t, found)
	_, found = other.cached("two")
	require.False(t, found, "only owned logical clusters must be watched")

	there.Break()
	there.Put(t, kinds.LogicalClusters.GroupVersionResource, ownedCluster("three", "later", "here"))
	expect("later")

	moved.Put(t, kinds.LogicalClusters.GroupVersionResource, ownedCluster("one", "moved", "here"))
	localClusters.Put(t, kinds.Shards.GroupVersionResource, shardsOf("there", moved.URL))
	// The owners of its previous logical clusters are requeued.
	reported := map[string]bool{}
	require.Eventually(t, func() bool { return len(queue) > 2 }, eventually, time.Millisecond)
	for range 3 {
		reported[(<-queue).Name] = true
	}
	require.Equal(t, map[string]bool{"ours": true, "later": true, "moved": true}, reported)

	localClusters.Delete(t, kinds.Shards.GroupVersionResource, "", "root", "", "there")
	require.Eventually(t, func() bool { _, err := s.at("there"); return err != nil }, eventually, time.Millisecond)
	_, err = s.at("there")
	require.ErrorIs(t, err, peers.ErrUnreachable)

	stop()
	cancel()
	require.NoError(t, <-ended)
	require.NoError(t, <-ended)
	require.Empty(t, queue)
}
