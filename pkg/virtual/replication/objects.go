package replication

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/virtual/board"
)

// objects implements definitions.Objects for replicas.
type objects struct {
	offering

	replicas *Replicas
}

// In implements definitions.Objects.
func (o objects) In(ctx context.Context, cluster request.Cluster, sch *definitions.Schema, version string) (definitions.Reader, error) {
	of, err := o.replicas.offered(o.offering)
	if err != nil {
		return nil, o.unavailable(err)
	}
	spec := sch.Spec()
	switch converted := spec.Conversion != nil && spec.Conversion.Strategy == apiextensionsv1.WebhookConverter; {
	case spec.Scope != apiextensionsv1.ClusterScoped:
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("%s cannot be served now: the provider's APIResourceSchema specifies that they are namespaced, which is not supported for replicas", o.resource)) //nolint:forbidigo // until the provider changes it
	case version != of.resource.Version && (converted || sch.Convert != nil):
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s are replicated in %s and not converted: use that version", o.resource, of.resource.Version))
	}
	b, err := o.replicas.boardOf(ctx, of, o.offering)
	if err != nil {
		return nil, err
	}
	name := cluster.Name
	if cluster.Wildcard {
		name = of.cluster
	}
	gvk := schema.GroupVersionKind{Group: o.resource.Group, Version: version, Kind: sch.Names().Kind}
	read := b.Read(board.Content{
		Resource: o.resource,
		Show:     func(obj client.Object, version string) client.Object { return show(obj, gvk, name, version) },
		Fields:   fieldsOf(sch.Version(version).SelectableFields),
		List: func(meta metav1.ListMeta, shown []client.Object) runtime.Object {
			list := &unstructured.UnstructuredList{Object: map[string]any{}, Items: make([]unstructured.Unstructured, 0, len(shown))}
			list.SetGroupVersionKind(gvk.GroupVersion().WithKind(sch.Names().ListKind))
			list.SetResourceVersion(meta.ResourceVersion)
			list.SetContinue(meta.Continue)
			list.SetRemainingItemCount(meta.RemainingItemCount)
			for _, obj := range shown {
				if u, ok := obj.(*unstructured.Unstructured); ok {
					list.Items = append(list.Items, *u)
				}
			}
			return list
		},
	})
	return reader{read, o.replicas, offeringOf{o.offering, of}}, nil
}

func (o objects) unavailable(why error) error {
	return request.Unavailable(fmt.Sprintf("%s cannot be served now: %v", o.resource, why))
}

// hidden contains prefixes of annotations that describe the origin of a replica.
var hidden = []string{request.ShardAnnotation, "cache.kcp.io/", "cache.shardplane.io/"}

// show returns a replica as an object of a consumer. The content is shared.
func show(obj client.Object, gvk schema.GroupVersionKind, cluster logicalcluster.Name, version string) client.Object {
	shown := &unstructured.Unstructured{Object: map[string]any{}}
	metadata := map[string]any{}
	if replica, ok := obj.(*unstructured.Unstructured); ok {
		maps.Copy(shown.Object, replica.Object)
		original, _ := replica.Object["metadata"].(map[string]any)
		maps.Copy(metadata, original)
		annotations := map[string]any{logicalcluster.AnnotationKey: cluster.String()}
		before, _ := original["annotations"].(map[string]any)
		for key, value := range before {
			if key != logicalcluster.AnnotationKey && !slices.ContainsFunc(hidden, func(prefix string) bool { return strings.HasPrefix(key, prefix) }) {
				annotations[key] = value
			}
		}
		metadata["annotations"] = annotations
	}
	metadata["resourceVersion"] = version
	shown.Object["metadata"] = metadata
	shown.SetGroupVersionKind(gvk)
	return shown
}

// fieldsOf returns a function that returns the selectable fields of an object.
func fieldsOf(selectable []apiextensionsv1.SelectableField) func(client.Object) fields.Set {
	return func(obj client.Object) fields.Set {
		set := fields.Set{"metadata.name": obj.GetName()}
		var content map[string]any
		if replica, ok := obj.(*unstructured.Unstructured); ok {
			content = replica.Object
		}
		for i := range selectable {
			path := strings.TrimPrefix(selectable[i].JSONPath, ".")
			set[path] = ""
			if value, found, _ := unstructured.NestedFieldNoCopy(content, strings.Split(path, ".")...); found && value != nil {
				set[path] = fmt.Sprint(value)
			}
		}
		return set
	}
}
