package shard

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
)

// clusterAt resolves a path, which may lead through other shards, and returns "" if it does not exist. It follows the
// Workspaces of the path, each of which is on the shard of its parent. It returns client.ErrIncomplete if a shard does
// not respond.
func (s *installation) clusterAt(ctx context.Context, path logicalcluster.Path) (logicalcluster.Name, error) {
	defer request.Pause(ctx)()
	first, rest, _ := strings.Cut(path.String(), ":")
	cluster := logicalcluster.Name(first)
	if rest == "" && !s.local.has(cluster) {
		_, found, err := readFromOthers(ctx, s, func(ctx context.Context, shard *client.Factory) (*corev1alpha1.LogicalCluster, error) {
			return kinds.LogicalClusters.In(shard.Cluster(cluster.Path())).Get(ctx, corev1alpha1.LogicalClusterName, metav1.GetOptions{})
		})
		if !found || err != nil {
			return "", err
		}
	}
	for rest != "" && cluster != "" {
		var name string
		name, rest, _ = strings.Cut(rest, ":")
		ws, err := s.workspaceIn(ctx, cluster, name)
		if ws == nil || err != nil {
			return "", err
		}
		cluster = logicalcluster.Name(ws.Spec.Cluster)
	}
	return cluster, nil
}

// workspaceIn returns a Workspace on any shard, or nil if it does not exist.
func (s *installation) workspaceIn(ctx context.Context, cluster logicalcluster.Name, name string) (*tenancyv1alpha1.Workspace, error) {
	if s.local.has(cluster) {
		ws, err := s.informers.Workspaces.Lister().Cluster(cluster).Get("", name)
		if apierrors.IsNotFound(err) {
			return nil, nil //nolint:nilnil // not found
		}
		return ws, err
	}
	ws, found, err := readFromOthers(ctx, s, func(ctx context.Context, shard *client.Factory) (*tenancyv1alpha1.Workspace, error) {
		return kinds.Workspaces.In(shard.Cluster(cluster.Path())).Get(ctx, name, metav1.GetOptions{})
	})
	if !found {
		return nil, err
	}
	return ws, nil
}

// readFromOthers reads an object from the other shards, one after the other, until one has it.
func readFromOthers[T any](ctx context.Context, s *installation, get func(ctx context.Context, shard *client.Factory) (T, error)) (object T, found bool, err error) {
	all, complete := s.peers.All()
	var failed error
	for _, peer := range all[1:] {
		err := peer.Do(ctx, reviewTimeout, func(ctx context.Context) error {
			var err error
			object, err = get(ctx, peer.Clients)
			return err
		})
		switch {
		case err == nil:
			return object, true, nil
		case !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err):
			failed = errors.Join(failed, fmt.Errorf("%w: shard %s: %w", client.ErrIncomplete, peer.Name, err))
		}
	}
	if failed == nil && !complete {
		failed = fmt.Errorf("%w: not all shards are known", client.ErrIncomplete)
	}
	return object, false, failed
}
