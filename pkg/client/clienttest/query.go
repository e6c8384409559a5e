package clienttest

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
)

var kinds = map[string]string{
	"workspaces": "Workspace", "logicalclusters": "LogicalCluster", "shards": "Shard", "configmaps": "ConfigMap",
	"secrets": "Secret", "workspacetypes": "WorkspaceType",
	"workspaceauthenticationconfigurations": "WorkspaceAuthenticationConfiguration", "namespaces": "Namespace",
	"resourcequotas": "ResourceQuota", "mutatingwebhookconfigurations": "MutatingWebhookConfiguration",
	"validatingwebhookconfigurations":   "ValidatingWebhookConfiguration",
	"mutatingadmissionpolicies":         "MutatingAdmissionPolicy",
	"mutatingadmissionpolicybindings":   "MutatingAdmissionPolicyBinding",
	"validatingadmissionpolicies":       "ValidatingAdmissionPolicy",
	"validatingadmissionpolicybindings": "ValidatingAdmissionPolicyBinding", "exportuses": "ExportUse",
	"subtreeusages": "SubtreeUsage", "apibindings": "APIBinding", "leases": "Lease", "apiexports": "APIExport",
	"events": "Event", "cachedresources": "CachedResource", "clustercachedresources": "ClusterCachedResource",
	"cachedresourceendpointslices":        "CachedResourceEndpointSlice",
	"clustercachedresourceendpointslices": "ClusterCachedResourceEndpointSlice",
}

type query struct {
	cluster, shard, namespace string
	// name is empty for a list.
	name     string
	resource schema.GroupVersionResource
	selector labels.Selector
	metadata bool
	ranges   client.Ranges
}

// typeMeta returns the apiVersion and kind of the objects in responses; any kind will do for unknown resources.
func (q query) typeMeta() (apiVersion, kind string) {
	if q.metadata {
		return "meta.k8s.io/v1", "PartialObjectMetadata"
	}
	return q.resource.GroupVersion().String(), cmp.Or(kinds[q.resource.Resource], "Object")
}

func (q query) matches(obj *unstructured.Unstructured) bool {
	return (q.cluster == request.Wildcard || q.cluster == logicalcluster.From(obj).String()) &&
		(q.shard == "" || q.shard == request.Wildcard || q.shard == obj.GetAnnotations()[request.ShardAnnotation]) &&
		(q.namespace == "" || q.namespace == obj.GetNamespace()) &&
		(q.ranges.Empty() || q.ranges.Contains(obj)) &&
		q.selector.Matches(labels.Set(obj.GetLabels()))
}

func (q query) project(obj *unstructured.Unstructured) map[string]any {
	if !q.metadata {
		return obj.Object
	}
	apiVersion, kind := q.typeMeta()
	return map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": obj.Object["metadata"]}
}

func parseQuery(r *http.Request) (query, error) {
	q := query{metadata: strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")}
	l, _, err := request.Locate(r.URL.Path, request.Clusters, request.CacheShards, request.Shards)
	if err != nil {
		return query{}, err
	}
	if below, ok := strings.CutPrefix(r.URL.Path, request.AdminPath); ok {
		l.Wildcard, l.Rest = true, below
	}
	if l.Path.Empty() && !l.Wildcard {
		return query{}, fmt.Errorf("no logical cluster in %s", r.URL.Path)
	}
	q.shard, q.cluster = l.Shard.String(), l.Path.String()
	if l.Wildcard {
		q.cluster = request.Wildcard
	}
	parts := strings.Split(strings.Trim(l.Rest, "/"), "/")
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		q.resource.Version, parts = parts[1], parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		q.resource.Group, q.resource.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return query{}, fmt.Errorf("no resource in %s", r.URL.Path)
	}
	if len(parts) >= 3 && parts[0] == "namespaces" {
		q.namespace, parts = parts[1], parts[2:]
	}
	if q.resource.Resource = parts[0]; len(parts) == 2 {
		q.name = parts[1]
	}
	if part := r.URL.Query().Get("shardSelector"); part != "" {
		if q.ranges, err = client.ParseRanges(part); err != nil {
			return query{}, err
		}
	}
	q.selector, err = labels.Parse(r.URL.Query().Get("labelSelector"))
	return q, err
}

func (q query) key() string {
	return strings.Join([]string{q.resource.String(), q.shard, q.cluster, q.namespace, q.name}, "|")
}
