package admin

import (
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/virtual/board"
)

var shards = corev1alpha1.Resource("shards")

var errNotSynced error = request.Unavailable("this shard has not read the Shards yet, neither from root nor from a cache server")

// newBoard serves the Shards with resourceVersions of its own, because they are read from root or from a cache server.
func newBoard(informer *client.Informer[*corev1alpha1.Shard]) *board.Reader {
	b := board.NewBoard(func() error {
		if !informer.HasSynced() {
			return errNotSynced
		}
		return nil
	})
	informer.AddEventHandler(client.Handler[*corev1alpha1.Shard]{
		OnAdd:    func(obj *corev1alpha1.Shard, _ bool) { b.Set(obj.Name, obj) },
		OnUpdate: func(_, obj *corev1alpha1.Shard) { b.Set(obj.Name, obj) },
		OnDelete: func(last *corev1alpha1.Shard, _ bool) { b.Set(last.Name, nil) },
	})
	return b.Read(board.Content{
		Resource: shards,
		Show: func(obj client.Object, version string) client.Object {
			shown := &corev1alpha1.Shard{}
			if shard, ok := obj.(*corev1alpha1.Shard); ok {
				shown = shard.DeepCopy()
			}
			shown.ResourceVersion = version
			return shown
		},
		Fields: func(obj client.Object) fields.Set { return fields.Set{"metadata.name": obj.GetName()} },
		List: func(meta metav1.ListMeta, shown []client.Object) runtime.Object {
			list := &corev1alpha1.ShardList{ListMeta: meta, Items: make([]corev1alpha1.Shard, 0, len(shown))}
			for _, obj := range shown {
				if shard, ok := obj.(*corev1alpha1.Shard); ok {
					list.Items = append(list.Items, *shard)
				}
			}
			return list
		},
	})
}
