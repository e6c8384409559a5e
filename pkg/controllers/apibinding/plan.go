package apibinding

import (
	"cmp"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
)

// observation is what a binding is to follow, as it was when a reconcile began.
type observation struct {
	provider logicalcluster.Name
	export   *apisv1alpha2.APIExport // nil if there is none
	// schemas are those of the export's resources, up to the first that does not exist.
	schemas []*metav1.PartialObjectMetadata
}

// plan is what is to become of a binding.
type plan struct {
	provider logicalcluster.Name
	export   *apisv1alpha2.APIExport // nil if there is none
	problem  *problem
	// wanted is what the binding is to have bound if there is no problem. It lacks the versions of schemas
	// that are still to be copied.
	wanted  []apisv1alpha2.BoundAPIResource
	offered []offered
	added   []types.UID // the schemas in wanted that are not bound yet
}

// offered is a resource that an export offers.
type offered struct {
	at       int        // in the wanted resources
	schema   client.Key // with the shard, if it is another one
	isStored bool       // with the consumers
	// replaces is set if the binding gets another schema than it has for the resource, or a first one.
	replaces bool
}

// decide returns what is to become of a binding.
func decide(binding *apisv1alpha2.APIBinding, o observation) *plan {
	p := &plan{provider: o.provider, export: o.export}
	switch {
	case o.export == nil:
		p.problem = noExport()
	case o.export.Status.IdentityHash == "":
		p.problem = noIdentity()
	case len(o.schemas) < len(o.export.Spec.Resources):
		p.problem = noSchema(o.export.Spec.Resources[len(o.schemas)].Schema)
	default:
		p.follow(binding.Status.BoundResources, o.schemas)
	}
	return p
}

// follow adds what a binding is to bind that has bound something: that, as it is offered now,
// and what is new. An identity never changes: who has bound a resource under another one keeps it.
func (p *plan) follow(before []apisv1alpha2.BoundAPIResource, schemas []*metav1.PartialObjectMetadata) {
	p.wanted = make([]apisv1alpha2.BoundAPIResource, 0, len(before)+len(schemas))
	for i := range before {
		p.wanted = append(p.wanted, *before[i].DeepCopy())
	}
	for i := range p.export.Spec.Resources {
		resource := &p.export.Spec.Resources[i]
		next := resourceOf(p.export, resource, schemas[i])
		o := offered{schema: keyOf(p.provider, schemas[i]), isStored: resource.Storage.Virtual == nil}
		o.at = slices.IndexFunc(p.wanted, func(b apisv1alpha2.BoundAPIResource) bool {
			return b.Group == next.Group && b.Resource == next.Resource
		})
		if o.at < 0 {
			o.at, o.replaces = len(p.wanted), true
			p.wanted, p.offered = append(p.wanted, next), append(p.offered, o)
			continue
		}
		switch known := &p.wanted[o.at]; {
		case known.Schema.IdentityHash != next.Schema.IdentityHash:
			p.problem = cmp.Or(p.problem, otherIdentity(known))
		case (len(known.StorageVersions) > 0) != o.isStored:
			p.problem = cmp.Or(p.problem, otherStorage(known))
		default:
			o.replaces = known.Schema.UID != next.Schema.UID
			known.Schema = next.Schema
			p.offered = append(p.offered, o)
		}
	}
	p.added = newSchemas(before, p.wanted)
}

// resourceOf returns a resource of an export as bindings would have it, without storage versions.
func resourceOf(export *apisv1alpha2.APIExport, resource *apisv1alpha2.ResourceSchema, schema *metav1.PartialObjectMetadata) apisv1alpha2.BoundAPIResource {
	return apisv1alpha2.BoundAPIResource{
		Group: resource.Group, Resource: resource.Name,
		Schema: apisv1alpha2.BoundAPIResourceSchema{Name: resource.Schema, UID: string(schema.UID), IdentityHash: export.Status.IdentityHash},
	}
}

// keyOf returns the key of a schema of a provider, with its shard.
func keyOf(provider logicalcluster.Name, schema *metav1.PartialObjectMetadata) client.Key {
	return client.Key{Shard: schema.Annotations[request.ShardAnnotation], Cluster: provider, Name: schema.Name}
}

// newSchemas returns the schemas of after that before does not have.
func newSchemas(before, after []apisv1alpha2.BoundAPIResource) []types.UID {
	known := make(map[string]bool, len(before))
	for i := range before {
		known[before[i].Schema.UID] = true
	}
	var added []types.UID
	for i := range after {
		if uid := after[i].Schema.UID; !known[uid] {
			added = append(added, types.UID(uid))
		}
	}
	return added
}

// replaced returns the wanted resources of which the binding gets another schema.
func (p *plan) replaced() (all []apisv1alpha2.BoundAPIResource) {
	for _, o := range p.offered {
		if o.replaces {
			all = append(all, p.wanted[o.at])
		}
	}
	return all
}
