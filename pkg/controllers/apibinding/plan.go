package apibinding

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
)

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
		p.problem = invalidExport(apisv1alpha2.APIExportNotFoundReason, conditionsv1alpha1.ConditionSeverityError,
			"The APIExport does not exist: create it, or delete the binding")
	case o.export.Status.IdentityHash == "":
		p.problem = invalidExport(missingIdentityHash, conditionsv1alpha1.ConditionSeverityWarning,
			"The APIExport has no identity yet: see its condition %s", apisv1alpha2.APIExportIdentityValid)
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
			p.problem = cmp.Or(p.problem, notBindable(apisv1alpha2.NamingConflictsReason,
				"%s.%s is bound with the previous identity of the APIExport, which its objects keep: delete the binding with its objects, and bind again", known.Resource, known.Group))
		case (len(known.StorageVersions) > 0) != o.isStored:
			p.problem = cmp.Or(p.problem, notBindable(apisv1alpha2.NamingConflictsReason,
				"%s.%s is bound with the previous storage of the APIExport, virtual or not, which cannot change: delete the binding with its objects, and bind again", known.Resource, known.Group))
		default:
			o.replaces = known.Schema.UID != next.Schema.UID
			known.Schema = next.Schema
			p.offered = append(p.offered, o)
		}
	}
	p.added = newSchemas(before, p.wanted)
}

func boundAs(binding *apisv1alpha2.APIBinding, group, resource string) *apisv1alpha2.BoundAPIResource {
	for i := range binding.Status.BoundResources {
		if b := &binding.Status.BoundResources[i]; b.Group == group && b.Resource == resource {
			return b
		}
	}
	return nil
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
	// overCapacity is set if binding must be retried when copies of schemas have been deleted.
	overCapacity bool
	reason       string
	severity     conditionsv1alpha1.ConditionSeverity
	message      string
}

func invalidExport(reason string, severity conditionsv1alpha1.ConditionSeverity, format string, args ...any) *problem {
	return &problem{export: true, reason: reason, severity: severity, message: fmt.Sprintf(format, args...)}
}

func noSchema(name string) *problem {
	return invalidExport(apisv1alpha2.InternalErrorReason, conditionsv1alpha1.ConditionSeverityError,
		"The APIExport references the APIResourceSchema %s, which does not exist: the provider must create it, or reference another one", name)
}

func notBindable(reason, format string, args ...any) *problem {
	return &problem{reason: reason, severity: conditionsv1alpha1.ConditionSeverityError, message: fmt.Sprintf(format, args...)}
}

func invalidSchema(name string, err error) *problem {
	p := notBindable(apisv1alpha2.APIResourceSchemaInvalidReason, "The APIResourceSchema %s cannot be bound, the provider must reference another one in the APIExport: %v", name, err)
	p.overCapacity = errors.Is(err, apis.ErrLimitReached) || errors.Is(err, apis.ErrInUse)
	return p
}

// waitingForReplicas is the reason while the exports of other shards have not been observed completely.
const waitingForReplicas = "WaitingForReplicas"

// Reasons that are not part of the SDK.
const (
	resourceDeletionFailed = "ResourceDeletionFailed"
	someResourcesRemain    = "SomeResourcesRemain"
	someFinalizersRemain   = "SomeFinalizersRemain"
)

// advance returns the binding with the status of the plan.
func (p *plan) advance(binding *apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding {
	binding = binding.DeepCopy()
	binding.Status.Phase = cmp.Or(binding.Status.Phase, apisv1alpha2.APIBindingPhaseBinding)
	binding.Status.APIExportClusterName = p.provider.String()
	export := cmp.Or(p.export, &apisv1alpha2.APIExport{}).DeepCopy() // a deleted export has no claims and annotations
	mirror(binding, export)
	binding.Status.ExportPermissionClaims = export.Spec.PermissionClaims
	setClaims(binding)
	switch {
	case p.problem == nil:
		binding.Status.BoundResources = p.wanted
		binding.Status.Phase = apisv1alpha2.APIBindingPhaseBound
		conditions.MarkTrue(binding, apisv1alpha2.APIExportValid)
		conditions.MarkTrue(binding, apisv1alpha2.BindingUpToDate)
		conditions.MarkTrue(binding, apisv1alpha2.InitialBindingCompleted)
	case p.problem.export:
		conditions.MarkFalse(binding, apisv1alpha2.APIExportValid, p.problem.reason, p.problem.severity, "%s", p.problem.message)
		// Bound resources stay bound.
		if !conditions.IsTrue(binding, apisv1alpha2.InitialBindingCompleted) {
			incomplete(binding, apisv1alpha2.WaitingForEstablishedReason, conditionsv1alpha1.ConditionSeverityInfo,
				fmt.Sprintf("The APIExport cannot be bound yet: see the condition %s", apisv1alpha2.APIExportValid))
		}
	default:
		conditions.MarkTrue(binding, apisv1alpha2.APIExportValid)
		incomplete(binding, p.problem.reason, p.problem.severity, p.problem.message)
	}
	conditions.SetSummary(binding, conditions.WithConditions(apisv1alpha2.InitialBindingCompleted))
	return binding
}

// waitingFor returns a binding that waits for the state of other shards.
func waitingFor(binding *apisv1alpha2.APIBinding, why error) *apisv1alpha2.APIBinding {
	binding = binding.DeepCopy()
	binding.Status.Phase = cmp.Or(binding.Status.Phase, apisv1alpha2.APIBindingPhaseBinding)
	incomplete(binding, waitingForReplicas, conditionsv1alpha1.ConditionSeverityInfo, fmt.Sprintf("Waiting for the state of other shards: %v", why))
	conditions.SetSummary(binding, conditions.WithConditions(apisv1alpha2.InitialBindingCompleted))
	return binding
}

// incomplete sets the conditions of a binding that is not up to date. A completed initial binding stays completed.
func incomplete(binding *apisv1alpha2.APIBinding, reason string, severity conditionsv1alpha1.ConditionSeverity, message string) {
	conditions.MarkFalse(binding, apisv1alpha2.BindingUpToDate, reason, severity, "%s", message)
	if !conditions.IsTrue(binding, apisv1alpha2.InitialBindingCompleted) {
		conditions.MarkFalse(binding, apisv1alpha2.InitialBindingCompleted, reason, severity, "%s", message)
	}
}

// mirror copies the annotations of the export that are intended for consumers.
func mirror(binding *apisv1alpha2.APIBinding, export *apisv1alpha2.APIExport) {
	maps.DeleteFunc(binding.Annotations, func(key, _ string) bool { return strings.HasPrefix(key, apis.MirroredPrefix) })
	for key, value := range export.Annotations {
		if strings.HasPrefix(key, apis.MirroredPrefix) {
			metav1.SetMetaDataAnnotation(&binding.ObjectMeta, key, value)
		}
	}
}

func setClaims(binding *apisv1alpha2.APIBinding) {
	claims := apis.CompareClaims(binding.Status.ExportPermissionClaims, binding.Spec.PermissionClaims)
	binding.Status.AppliedPermissionClaims = claims.Applied
	switch {
	case len(claims.NotExported) > 0:
		conditions.MarkFalse(binding, apisv1alpha2.PermissionClaimsValid, apisv1alpha2.InvalidPermissionClaimsReason, conditionsv1alpha1.ConditionSeverityError,
			"%s is accepted, but the APIExport does not claim it: remove it from spec.permissionClaims, or wait for the provider", claims.NotExported[0])
	case len(claims.Different) > 0:
		conditions.MarkFalse(binding, apisv1alpha2.PermissionClaimsValid, apisv1alpha2.PermissionClaimsMismatchReason, conditionsv1alpha1.ConditionSeverityWarning,
			"%s is accepted with other verbs, or for other objects, than the APIExport claims, and only the intersection is effective: change spec.permissionClaims, unless this is intended", claims.Different[0])
	default:
		conditions.MarkTrue(binding, apisv1alpha2.PermissionClaimsValid)
	}
	conditions.MarkTrue(binding, apisv1alpha2.PermissionClaimsApplied)
}

type remainder struct {
	resource   string
	objects    int
	finalizers map[string]int
}

// remaining sets the reason why a deleted binding still exists.
func remaining(binding *apisv1alpha2.APIBinding, all []remainder, err error) *apisv1alpha2.APIBinding {
	binding = binding.DeepCopy()
	if err != nil {
		conditions.MarkFalse(binding, apisv1alpha2.BindingResourceDeleteSuccess, resourceDeletionFailed, conditionsv1alpha1.ConditionSeverityError,
			"Failed to delete the bound objects, retrying: %v", err)
		return binding
	}
	resources, waits := make([]string, 0, len(all)), []string(nil)
	for _, l := range all {
		resources = append(resources, fmt.Sprintf("%d of %s", l.objects, l.resource))
		for _, f := range slices.Sorted(maps.Keys(l.finalizers)) {
			waits = append(waits, fmt.Sprintf("%s has %d of %s", f, l.finalizers[f], l.resource))
		}
	}
	reason, message := someResourcesRemain, "Objects remain: "+strings.Join(resources, ", ")
	if len(waits) > 0 {
		reason, message = someFinalizersRemain, message+". They wait for finalizers, which their owners must remove: "+strings.Join(waits, ", ")
	} else {
		message += ". Their deletion continues automatically"
	}
	conditions.MarkFalse(binding, apisv1alpha2.BindingResourceDeleteSuccess, reason, conditionsv1alpha1.ConditionSeverityInfo, "%s", message)
	return binding
}
