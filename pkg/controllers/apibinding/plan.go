package apibinding

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
)

// observation is the input of decide.
type observation struct {
	provider logicalcluster.Name
	export   *apisv1alpha2.APIExport // nil if there is none
	// schemas are those of the export's resources, up to the first that does not exist.
	schemas []*metav1.PartialObjectMetadata
}

type plan struct {
	provider logicalcluster.Name
	export   *apisv1alpha2.APIExport // nil if there is none
	problem  *problem
	// wanted are the resources to bind if there is no problem, without the storage versions of schemas that are not copied yet.
	wanted  []apisv1alpha2.BoundAPIResource
	offered []offered
	added   []types.UID // the schemas in wanted that are not bound yet
}

type offered struct {
	at       int        // in the wanted resources
	schema   client.Key // with the shard, if it is another one
	isStored bool       // with the consumers
	// replaces is set if the schema is new for the binding.
	replaces bool
}

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

// follow adds the resources of the export to the bound ones. The identity of a bound resource never changes.
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

// resourceOf returns a resource of an export as a bound resource, without storage versions.
func resourceOf(export *apisv1alpha2.APIExport, resource *apisv1alpha2.ResourceSchema, schema *metav1.PartialObjectMetadata) apisv1alpha2.BoundAPIResource {
	return apisv1alpha2.BoundAPIResource{
		Group: resource.Group, Resource: resource.Name,
		Schema: apisv1alpha2.BoundAPIResourceSchema{Name: resource.Schema, UID: string(schema.UID), IdentityHash: export.Status.IdentityHash},
	}
}

func keyOf(provider logicalcluster.Name, schema *metav1.PartialObjectMetadata) client.Key {
	return client.Key{Shard: schema.Annotations[request.ShardAnnotation], Cluster: provider, Name: schema.Name}
}

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

// replaced returns the wanted resources with a schema that is new for the binding.
func (p *plan) replaced() (all []apisv1alpha2.BoundAPIResource) {
	for _, o := range p.offered {
		if o.replaces {
			all = append(all, p.wanted[o.at])
		}
	}
	return all
}

const missingIdentityHash = "MissingIdentityHash"

type problem struct {
	// export is set if the export is invalid.
	export bool
	// overCapacity is set if the shard has too many schemas of the provider, or uses an incompatible one: binding is retried when
	// copies of schemas have been deleted.
	overCapacity bool
	reason       string
	severity     conditionsv1alpha1.ConditionSeverity
	message      string
}

func noExport() *problem {
	return &problem{
		export: true, reason: apisv1alpha2.APIExportNotFoundReason, severity: conditionsv1alpha1.ConditionSeverityError,
		message: "The APIExport does not exist: create it, or delete the binding",
	}
}

func noIdentity() *problem {
	return &problem{
		export: true, reason: missingIdentityHash, severity: conditionsv1alpha1.ConditionSeverityWarning,
		message: fmt.Sprintf("The APIExport has no identity yet: see its condition %s", apisv1alpha2.APIExportIdentityValid),
	}
}

func noSchema(name string) *problem {
	return &problem{
		export: true, reason: apisv1alpha2.InternalErrorReason, severity: conditionsv1alpha1.ConditionSeverityError,
		message: fmt.Sprintf("The APIExport references the APIResourceSchema %s, which does not exist: the provider must create it, or reference another one", name),
	}
}

func invalidSchema(name string, err error) *problem {
	return &problem{
		overCapacity: errors.Is(err, apis.ErrLimitReached) || errors.Is(err, apis.ErrInUse),
		reason:       apisv1alpha2.APIResourceSchemaInvalidReason, severity: conditionsv1alpha1.ConditionSeverityError,
		message: fmt.Sprintf("The APIResourceSchema %s cannot be bound, the provider must reference another one in the APIExport: %v", name, err),
	}
}

func conflicting(format string, args ...any) *problem {
	return &problem{
		reason: apisv1alpha2.NamingConflictsReason, severity: conditionsv1alpha1.ConditionSeverityError, message: fmt.Sprintf(format, args...),
	}
}

func namingConflict(conflict string) *problem {
	return conflicting("%s: delete it, or this binding. The resource is bound when the name is released", conflict)
}

func noLogicalCluster() *problem {
	return &problem{
		reason: apisv1alpha2.LogicalClusterNotFoundReason, severity: conditionsv1alpha1.ConditionSeverityError,
		message: "The LogicalCluster was not found: if it was just created, binding is retried, otherwise it is being deleted with this binding",
	}
}

func tooMany() *problem {
	return &problem{
		reason: apisv1alpha2.InternalErrorReason, severity: conditionsv1alpha1.ConditionSeverityError,
		message: fmt.Sprintf("The annotation %s of the LogicalCluster, which records the bound resources, would have more than %d bytes: delete other bindings", locksAnnotation, maxLocksBytes),
	}
}

func otherIdentity(bound *apisv1alpha2.BoundAPIResource) *problem {
	return conflicting("%s.%s is bound with the previous identity of the APIExport, which its objects keep: delete the binding with its objects, and bind again", bound.Resource, bound.Group)
}

func otherStorage(bound *apisv1alpha2.BoundAPIResource) *problem {
	return conflicting("%s.%s is bound with the previous storage of the APIExport, virtual or not, which cannot change: delete the binding with its objects, and bind again", bound.Resource, bound.Group)
}
