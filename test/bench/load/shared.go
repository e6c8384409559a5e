package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/bench/measure"
)

// SharedName is what the names of objects of Share begin with.
const SharedName = "shared-"

// Share makes so many objects of so many bytes in the provider's logical cluster that are replicated, by turns roles that
// say who may bind the export, and bindings of these.
func (b *Bindings) Share(ctx context.Context, count, size int) ([]measure.Result, error) {
	padding := strings.Repeat("x", size)
	return makeAll(ctx, b.shard, b.clients, "object that is replicated", count, schema.GroupVersionResource{}, nil, func(ctx context.Context, c *rest.RESTClient, n int) error {
		meta := metav1.ObjectMeta{Name: fmt.Sprintf("%s%d", SharedName, n), Annotations: map[string]string{"bench.shardplane.io/padding": padding}}
		of := rbacv1.SchemeGroupVersion.WithResource("clusterroles")
		var object any = rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{apiExports.Group}, Resources: []string{apiExports.Resource}, ResourceNames: []string{exportName}, Verbs: []string{"bind"},
		}}}
		if n%2 == 1 {
			of.Resource = "clusterrolebindings"
			object = rbacv1.ClusterRoleBinding{
				ObjectMeta: meta,
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: fmt.Sprintf("%s%d", SharedName, n-1)},
				Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: fmt.Sprintf("user-%d", n)}},
			}
		}
		body, err := json.Marshal(object)
		if err != nil {
			return fmt.Errorf("encoding %s: %w", meta.Name, err)
		}
		return c.Post().AbsPath(pathOf(b.cluster(0), of, "")).SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
	})
}

// BindTo binds the export of another one's provider in a logical cluster, and uses it.
func (b *Bindings) BindTo(ctx context.Context, provider *Bindings, n int) error {
	if err := create(ctx, b.clients[0], b.cluster(n), apiBindings, "APIBinding", exportName, bindingSpec(provider.cluster(0), false)); err != nil {
		return fmt.Errorf("binding an export of another shard: %w", err)
	}
	if err := untilObject(ctx, b.clients[0], "an export of another shard is bound", pathOf(b.cluster(n), apiBindings, exportName), isBound); err != nil {
		return err
	}
	return b.Use(ctx, n)
}

// KnowsShards waits until the shard tells administrators of so many shards, which it does by what it knows of root's.
func (b *Bindings) KnowsShards(ctx context.Context, count int) error {
	return untilObject(ctx, b.clients[0], fmt.Sprintf("%s knows %d shards", b.shard.Name, count), "/services/admin/apis/core.kcp.io/v1alpha1/shards", func(list *unstructured.Unstructured) bool {
		items, _ := list.Object["items"].([]any)
		return len(items) >= count
	})
}

// Ready waits until the server of the bindings is ready.
func (b *Bindings) Ready(ctx context.Context) error {
	for {
		err := b.clients[0].Get().AbsPath("/readyz").Do(ctx).Error()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", b.shard.Name, errors.Join(ctx.Err(), err))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// untilObject waits until an object is as wanted.
func untilObject(ctx context.Context, client *rest.RESTClient, what, path string, is func(*unstructured.Unstructured) bool) error {
	for {
		object := &unstructured.Unstructured{}
		content, err := client.Get().AbsPath(path).Do(ctx).Raw()
		if err == nil {
			if err = object.UnmarshalJSON(content); err == nil && is(object) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w", what, errors.Join(ctx.Err(), err))
		case <-time.After(20 * time.Millisecond):
		}
	}
}
