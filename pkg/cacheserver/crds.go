package cacheserver

import (
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/customresource"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/tenancy/cachekinds"
	"github.com/shardplane/shardplane/pkg/tenancy/exportuses"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
)

// builtIns are the built-in resources that shards replicate. Here they are custom resources.
var builtIns = []*apiextensionsv1.CustomResourceDefinition{
	builtIn(rbacv1.SchemeGroupVersion, "ClusterRole"),
	builtIn(rbacv1.SchemeGroupVersion, "ClusterRoleBinding"),
	builtIn(admissionregistrationv1.SchemeGroupVersion, "MutatingWebhookConfiguration"),
	builtIn(admissionregistrationv1.SchemeGroupVersion, "ValidatingWebhookConfiguration"),
	builtIn(admissionregistrationv1.SchemeGroupVersion, "MutatingAdmissionPolicy"),
	builtIn(admissionregistrationv1.SchemeGroupVersion, "MutatingAdmissionPolicyBinding"),
	builtIn(admissionregistrationv1.SchemeGroupVersion, "ValidatingAdmissionPolicy"),
	builtIn(admissionregistrationv1.SchemeGroupVersion, "ValidatingAdmissionPolicyBinding"),
}

// direct are the resources that shards write to cache servers directly.
var direct = []*apiextensionsv1.CustomResourceDefinition{
	builtIn(cachekinds.SchemeGroupVersion, subtrees.Kind),
	builtIn(cachekinds.SchemeGroupVersion, exportuses.Kind),
	builtIn(cachekinds.SchemeGroupVersion, replicationcheckpoints.Kind),
}

// unused are resources that kcp's cache server serves but no shard replicates. Clients that list them receive an empty
// list instead of 404.
var unused = []*apiextensionsv1.CustomResourceDefinition{
	namespaced(builtIn(rbacv1.SchemeGroupVersion, "Role")),
	namespaced(builtIn(rbacv1.SchemeGroupVersion, "RoleBinding")),
}

func namespaced(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	crd.Spec.Scope = apiextensionsv1.NamespaceScoped
	return crd
}

// written returns the resources of direct except checkpoints, which the replication writes.
func written() []schema.GroupVersionResource {
	var all []schema.GroupVersionResource
	for _, crd := range direct {
		if crd.Spec.Names.Kind != replicationcheckpoints.Kind {
			all = append(all, schema.GroupVersionResource{Group: crd.Spec.Group, Version: crd.Spec.Versions[0].Name, Resource: crd.Spec.Names.Plural})
		}
	}
	return all
}

// builtIn returns the definition of a cluster-scoped resource with Go types.
func builtIn(gv schema.GroupVersion, kind string) *apiextensionsv1.CustomResourceDefinition {
	singular := strings.ToLower(kind)
	plural := singular + "s"
	if stem, ok := strings.CutSuffix(singular, "y"); ok {
		plural = stem + "ies"
	}
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + gv.Group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group:    gv.Group,
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Singular: singular, Kind: kind, ListKind: kind + "List"},
			Scope:    apiextensionsv1.ClusterScoped,
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: gv.Version, Served: true, Storage: true}},
		},
	}
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(crd)
	return crd
}

// served returns the definitions of all resources that shards replicate or write. They accept any content, because the
// shard of an object has validated it, and pruning would lose fields of newer releases.
func served(table []replication.Resource) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	all, err := config.SystemCRDs()
	if err != nil {
		return nil, err
	}
	byResource := make(map[schema.GroupResource]*apiextensionsv1.CustomResourceDefinition, len(all))
	for _, crd := range append(all, builtIns...) {
		byResource[schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}] = crd
	}
	selected := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(table)+len(direct)+len(unused))
	for _, resource := range table {
		crd, ok := byResource[resource.GroupResource()]
		if !ok {
			return nil, fmt.Errorf("shards replicate %s, but neither config/crds nor the table of built-in resources contains it: generate its definition or add it to the table", resource.GroupResource())
		}
		selected = append(selected, customresource.Opaque(crd))
	}
	for _, crd := range slices.Concat(direct, unused) {
		selected = append(selected, customresource.Opaque(crd))
	}
	return selected, nil
}
