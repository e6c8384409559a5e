package replication

import (
	"context"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
)

// assigned are the metadata that a cache server of the previous release gives to replicas
// itself, whatever they come with.
var assigned = []string{"uid", "generation", "creationTimestamp", "managedFields"}

// server is what is known of the cache server. It is safe for concurrent use.
type server struct {
	assigning atomic.Bool
}

// assigns reports whether the cache server gives UIDs and the like of its own to replicas,
// as one of the previous release does. It is not taken for one before it has done so.
func (s *server) assigns() bool { return s != nil && s.assigning.Load() }

// learn looks at a replica as the cache server has written it.
func (s *server) learn(written *unstructured.Unstructured) {
	if _, replica := written.GetAnnotations()[request.OriginalUIDAnnotation]; !replica {
		return
	}
	s.assigning.Store(string(written.GetUID()) != written.GetAnnotations()[request.OriginalUIDAnnotation])
}

// keeps says that the cache server has digests, and so is of a release that assigns nothing.
func (s *server) keeps() { s.assigning.Store(false) }

// askAgain finds out whether a cache server that assigned metadata still does: it writes one
// replica that would be another one otherwise. Once it does not, all of them are to be written.
func (s *session) askAgain(ctx context.Context) {
	if !s.resource.server.assigns() {
		return
	}
	for _, text := range s.expected.WithPrefix("") {
		key, err := client.SplitKey(text)
		if err != nil {
			continue
		}
		local, err := getObject(ctx, s.config.Local, s.resource, key)
		if err != nil || local == nil {
			continue
		}
		replica, err := getObject(ctx, s.config.replicas(), s.resource, key)
		if err != nil || replica == nil || replica.GetUID() == local.GetUID() {
			continue
		}
		if _, err := s.apply(ctx, key, actionUpdate, following(s.resource.desired(local), replica)); err != nil {
			klog.FromContext(ctx).V(2).Info("It could not be found out whether the cache server keeps the metadata of replicas", "err", err)
		}
		return
	}
}
