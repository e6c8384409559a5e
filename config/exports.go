package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/core"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// schemaHashBytes is the number of bytes of the hash in the name of a schema.
const schemaHashBytes = 4

// RootExports returns the APIExports that exist in root from the start, and their APIResourceSchemas, which have the
// content of CustomResourceDefinitions. Schemas are immutable, so their names contain a hash of the content. The caller
// owns them.
func RootExports() ([]*apisv1alpha2.APIExport, []*apisv1alpha1.APIResourceSchema, error) {
	exports, err := load[apisv1alpha2.APIExport]("exports")
	if err != nil {
		return nil, nil, err
	}
	crds, err := adjusted()
	if err != nil {
		return nil, nil, err
	}
	byName := make(map[string]*apiextensionsv1.CustomResourceDefinition, len(crds))
	for _, crd := range crds {
		byName[crd.Name] = crd
	}
	var schemas []*apisv1alpha1.APIResourceSchema
	for _, export := range exports {
		for i := range export.Spec.Resources {
			resource := &export.Spec.Resources[i]
			crd := byName[resource.Name+"."+resource.Group]
			if crd == nil {
				return nil, nil, fmt.Errorf("the embedded APIExport %s names %s.%s, which is not in config/crds: remove it and build again", export.Name, resource.Name, resource.Group)
			}
			schema, err := schemaOf(crd)
			if err != nil {
				return nil, nil, err
			}
			resource.Schema = schema.Name
			schemas = append(schemas, schema)
		}
	}
	return exports, schemas, nil
}

// RootExportOf returns the name of the APIExport of root that offers a resource, or "".
func RootExportOf(resource schema.GroupResource) string {
	return offered()[resource]
}

// IsRootExport reports whether an APIExport of that name exists in root from the start.
func IsRootExport(name string) bool {
	for _, export := range offered() {
		if export == name {
			return true
		}
	}
	return false
}

// RootExportNames returns the names of the APIExports that exist in root from the start, sorted.
func RootExportNames() []string {
	return slices.Compact(slices.Sorted(maps.Values(offered())))
}

// SystemBindings returns the names of the exports of root whose resources were served without bindings in earlier
// versions. Existing logical clusters receive bindings to them. Shards exist only in root.
func SystemBindings(cluster logicalcluster.Name) []string {
	names := []string{"tenancy.kcp.io", "topology.kcp.io"}
	if cluster == core.RootCluster {
		names = append(names, "shards.core.kcp.io")
	}
	return names
}

// offered are the names of exports by offered resource.
var offered = sync.OnceValue(func() map[schema.GroupResource]string {
	exports, err := load[apisv1alpha2.APIExport]("exports")
	if err != nil {
		panic(err) // servers do not start if RootExports returns an error
	}
	all := map[schema.GroupResource]string{}
	for _, export := range exports {
		for _, resource := range export.Spec.Resources {
			all[schema.GroupResource{Group: resource.Group, Resource: resource.Name}] = export.Name
		}
	}
	return all
})

// schemaOf returns the schema with the content of a definition.
func schemaOf(crd *apiextensionsv1.CustomResourceDefinition) (*apisv1alpha1.APIResourceSchema, error) {
	schema, err := apisv1alpha1.CRDToAPIResourceSchema(crd, "v")
	if err != nil {
		return nil, fmt.Errorf("the APIResourceSchema of %s: %w", crd.Name, err)
	}
	content, err := json.Marshal(schema.Spec)
	if err != nil {
		return nil, fmt.Errorf("encoding the APIResourceSchema of %s: %w", crd.Name, err)
	}
	hash := sha256.Sum256(content)
	schema.Name = "v" + hex.EncodeToString(hash[:schemaHashBytes]) + "." + crd.Name
	return schema, nil
}
