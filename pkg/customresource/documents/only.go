package documents

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/handler3"
)

// only returns what the wrapped handler serves of some resources.
func (b *BuiltIns) only(ctx context.Context, resources map[schema.GroupResource]bool) (*BuiltIns, error) {
	whole, err := b.load(ctx)
	if err != nil {
		return nil, err
	}
	openapi, err := b.openapi(ctx)
	if err != nil {
		return nil, err
	}
	loaded := &builtInDiscovery{
		core: someOf(whole.core, resources), groups: someOf(whole.groups, resources),
		versions: map[schema.GroupVersion]bool{}, resources: map[schema.GroupResource]bool{},
	}
	documents := &builtInOpenAPI{hash: openapi.hash, versions: map[schema.GroupVersion]bool{}}
	index := handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}}
	for _, g := range loaded.all() {
		for _, v := range g.Versions {
			gv := schema.GroupVersion{Group: g.Name, Version: v.Version}
			loaded.versions[gv] = true
			for _, r := range v.Resources {
				loaded.resources[schema.GroupResource{Group: g.Name, Resource: r.Resource}] = true
			}
			if openapi.versions[gv] {
				documents.versions[gv] = true
				index.Paths[pathOf(gv)] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: v3URL(pathOf(gv), (&documentSet{builtIns: b}).v3(gv, openapi).ETag)}
			}
		}
	}
	if documents.index, err = json.Marshal(index); err != nil {
		return nil, fmt.Errorf("encoding the OpenAPI index: %w", err)
	}
	some := &BuiltIns{Next: b.Next}
	some.loaded.Store(loaded)
	some.documents.Store(documents)
	return some, nil
}

// someOf returns what groups have of some resources.
func someOf(groups []apidiscoveryv2.APIGroupDiscovery, resources map[schema.GroupResource]bool) []apidiscoveryv2.APIGroupDiscovery {
	var some []apidiscoveryv2.APIGroupDiscovery
	for _, g := range groups {
		group := apidiscoveryv2.APIGroupDiscovery{TypeMeta: g.TypeMeta, ObjectMeta: g.ObjectMeta}
		for _, v := range g.Versions {
			v.Resources = slices.DeleteFunc(slices.Clone(v.Resources), func(r apidiscoveryv2.APIResourceDiscovery) bool {
				return !resources[schema.GroupResource{Group: g.Name, Resource: r.Resource}]
			})
			if len(v.Resources) > 0 {
				group.Versions = append(group.Versions, v)
			}
		}
		if len(group.Versions) > 0 {
			some = append(some, group)
		}
	}
	return some
}

// sorted returns the resources, in a fixed order.
func (b *BuiltIns) sorted() []schema.GroupResource {
	return slices.SortedFunc(maps.Keys(b.loaded.Load().resources), func(a, b schema.GroupResource) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Resource, b.Resource))
	})
}
