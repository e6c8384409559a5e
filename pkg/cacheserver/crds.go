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

// builtIns are the built-in kinds that shards replicate. On a shard they come
// from code; here they are kinds like all others.
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

// direct are the kinds that shards write here themselves, and replicate from nowhere.
var direct = []*apiextensionsv1.CustomResourceDefinition{
	builtIn(cachekinds.SchemeGroupVersion, subtrees.Kind),
	builtIn(cachekinds.SchemeGroupVersion, exportuses.Kind),
	builtIn(cachekinds.SchemeGroupVersion, replicationcheckpoints.Kind),
}

// unused are kinds that kcp's cache server serves as well, and no shard replicates: who lists them finds
// none, and not that they do not exist.
var unused = []*apiextensionsv1.CustomResourceDefinition{
	namespaced(builtIn(rbacv1.SchemeGroupVersion, "Role")),
	namespaced(builtIn(rbacv1.SchemeGroupVersion, "RoleBinding")),
}

func namespaced(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	crd.Spec.Scope = apiextensionsv1.NamespaceScoped
	return crd
}

// written returns the resources of direct, but for marks, which are written by who replicates.
func written() []schema.GroupVersionResource {
	var all []schema.GroupVersionResource
	for _, crd := range direct {
		if crd.Spec.Names.Kind != replicationcheckpoints.Kind {
			all = append(all, schema.GroupVersionResource{Group: crd.Spec.Group, Version: crd.Spec.Versions[0].Name, Resource: crd.Spec.Names.Plural})
		}
	}
	return all
}

// builtIn returns the definition of a cluster-scoped kind that has its Go types in
// the program.
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

// served returns the definitions of what shards replicate, and of what they write
// here. They take any content, in one piece: the object's own shard has validated
// it, and checking again would lose what shards of a newer release know.
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
			return nil, fmt.Errorf("shards replicate %s, but neither config/crds nor the table of built-in kinds has it: generate its definition, or add it to the table", resource.GroupResource())
		}
		selected = append(selected, customresource.Opaque(crd))
	}
	for _, crd := range slices.Concat(direct, unused) {
		selected = append(selected, customresource.Opaque(crd))
	}
	return selected, nil
}
