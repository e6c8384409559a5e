package cacheserver

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/controllers/replication"
	"github.com/shardplane/shardplane/pkg/customresource"
)

// definitions returns the definitions of what shards replicate. They take any
// content, in one piece: the object's own shard has validated it, and checking
// again would lose what shards of a newer release know.
func definitions(table []replication.Resource) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	all, err := config.SystemCRDs()
	if err != nil {
		return nil, err
	}
	byResource := make(map[schema.GroupResource]*apiextensionsv1.CustomResourceDefinition, len(all))
	for _, crd := range all {
		byResource[schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}] = crd
	}
	selected := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(table))
	for _, resource := range table {
		crd, ok := byResource[resource.GroupResource()]
		if !ok {
			return nil, fmt.Errorf("shards replicate %s, but config/crds has no definition of it: generate one", resource.GroupResource())
		}
		selected = append(selected, customresource.Opaque(crd))
	}
	return selected, nil
}
