package core

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/registry/validate"
	"github.com/shardplane/shardplane/pkg/request"
)

const isNegativeMessage = "must be greater than or equal to 0"

var resourceQuotas = &resource.Resource[*corev1.ResourceQuota, *corev1.ResourceQuotaList]{
	ShortNames: []string{"quota"},
	Namespaced: true,
	Strategy: resource.Strategy[*corev1.ResourceQuota]{
		PrepareForCreate: func(_ context.Context, quota *corev1.ResourceQuota) { quota.Status = corev1.ResourceQuotaStatus{} },
		PrepareForUpdate: func(_ context.Context, quota, old *corev1.ResourceQuota) { quota.Status = old.Status },
		Validate: func(_ context.Context, quota *corev1.ResourceQuota) field.ErrorList {
			errs := validate.ObjectMeta(quota, true, apivalidation.NameIsDNSSubdomain)
			return append(errs, validateQuotaSpec(&quota.Spec)...)
		},
		ValidateUpdate:      validateQuotaUpdate,
		UnconditionalUpdate: true,
		ResetFields:         [][]string{{"status"}},
	},
	Subresources: []resource.Subresource[*corev1.ResourceQuota]{{
		Name: "status",
		Strategy: resource.Strategy[*corev1.ResourceQuota]{
			PrepareForUpdate: func(_ context.Context, quota, old *corev1.ResourceQuota) { quota.Spec = old.Spec },
			ValidateUpdate: func(_ context.Context, quota, old *corev1.ResourceQuota) field.ErrorList {
				errs := validate.ObjectMetaUpdate(quota, old)
				errs = append(errs, validateQuantities(quota.Status.Hard, field.NewPath("status", "hard"))...)
				return append(errs, validateQuantities(quota.Status.Used, field.NewPath("status", "used"))...)
			},
			UnconditionalUpdate: true,
			ResetFields:         [][]string{{"spec"}},
		},
	}},
	Columns: []resource.Column[*corev1.ResourceQuota]{
		resource.NameColumn[*corev1.ResourceQuota](),
		{Name: "Request", Description: "Request represents a minimum amount of cpu/memory that a container may consume.", Cell: func(quota *corev1.ResourceQuota) any {
			return quotaCell(quota, func(name string) bool { return !strings.HasPrefix(name, "limits.") })
		}},
		{Name: "Limit", Description: "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node.", Cell: func(quota *corev1.ResourceQuota) any {
			return quotaCell(quota, func(name string) bool { return strings.HasPrefix(name, "limits.") })
		}},
		resource.AgeColumn[*corev1.ResourceQuota](),
	},
}

func quotaCell(quota *corev1.ResourceQuota, include func(name string) bool) string {
	parts := make([]string, 0, len(quota.Status.Hard))
	for _, name := range slices.Sorted(maps.Keys(quota.Status.Hard)) {
		if include(string(name)) {
			used, hard := quota.Status.Used[name], quota.Status.Hard[name]
			parts = append(parts, fmt.Sprintf("%s: %s/%s", name, used.String(), hard.String()))
		}
	}
	return strings.Join(parts, ", ")
}

func validateQuotaUpdate(_ context.Context, quota, old *corev1.ResourceQuota) field.ErrorList {
	errs := validate.ObjectMetaUpdate(quota, old)
	errs = append(errs, validateQuotaSpec(&quota.Spec)...)
	if !equality.Semantic.DeepEqual(scopesOf(quota), scopesOf(old)) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "scopes"), quota.Spec.Scopes, "field is immutable"))
	}
	return errs
}

func scopesOf(quota *corev1.ResourceQuota) []corev1.ResourceQuotaScope {
	return slices.Sorted(slices.Values(quota.Spec.Scopes))
}

func validateQuotaSpec(spec *corev1.ResourceQuotaSpec) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateQuantities(spec.Hard, path.Child("hard"))
	errs = append(errs, validateQuotaScopes(spec, path.Child("scopes"))...)
	return append(errs, validateScopeSelector(spec, path.Child("scopeSelector", "matchExpressions"))...)
}

func validateQuantities(list corev1.ResourceList, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(list)) {
		key, quantity := path.Key(string(name)), list[name]
		errs = append(errs, validateResourceName(string(name), key)...)
		if quantity.Cmp(apiresource.Quantity{}) < 0 {
			errs = append(errs, field.Invalid(key, quantity.String(), isNegativeMessage))
		}
		if isInteger(name) && quantity.MilliValue()%1000 != 0 {
			errs = append(errs, field.Invalid(key, quantity.String(), "must be an integer"))
		}
	}
	return errs
}

// validateResourceName validates the name of a resource: qualified, or one of the standard resources.
func validateResourceName(name string, path *field.Path) field.ErrorList {
	errs := validate.Messages(path, name, validation.IsQualifiedName(name))
	if len(errs) == 0 && !strings.Contains(name, "/") && !isStandardQuota(corev1.ResourceName(name)) {
		errs = append(errs, field.Invalid(path, name, "must be a standard resource for quota"))
	}
	return errs
}

// countedResources have a short name for the number of objects.
var countedResources = []corev1.ResourceName{
	corev1.ResourceConfigMaps, corev1.ResourceSecrets, corev1.ResourceQuotas, corev1.ResourceServices,
	corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers, corev1.ResourcePods,
	corev1.ResourceReplicationControllers, corev1.ResourcePersistentVolumeClaims,
}

func isInteger(name corev1.ResourceName) bool {
	return slices.Contains(countedResources, name) || strings.HasPrefix(string(name), "count/")
}

func isStandardQuota(name corev1.ResourceName) bool {
	bare := strings.TrimPrefix(strings.TrimPrefix(string(name), corev1.DefaultResourceRequestsPrefix), "limits.")
	switch corev1.ResourceName(bare) {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return true
	case corev1.ResourceStorage:
		return name == corev1.ResourceRequestsStorage
	default:
		return slices.Contains(countedResources, name) || strings.HasPrefix(bare, corev1.ResourceHugePagesPrefix)
	}
}

// podScopes contains all scopes. A quota with a scope applies to nothing, because logical clusters have no pods.
var podScopes = []corev1.ResourceQuotaScope{
	corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeBestEffort,
	corev1.ResourceQuotaScopeNotBestEffort, corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopeCrossNamespacePodAffinity,
	corev1.ResourceQuotaScopeVolumeAttributesClass,
}

func validateQuotaScopes(spec *corev1.ResourceQuotaSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	other, selects := selectsOthers(spec.Hard)
	for _, scope := range spec.Scopes {
		if len(errs) > request.MaxErrors {
			break
		}
		switch {
		case !slices.Contains(podScopes, scope):
			errs = append(errs, field.Invalid(path, spec.Scopes, "unsupported scope"))
		case selects:
			errs = append(errs, notScoped(spec, scope, other, path))
		}
	}
	for _, pair := range [][2]corev1.ResourceQuotaScope{
		{corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort},
		{corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating},
	} {
		if slices.Contains(spec.Scopes, pair[0]) && slices.Contains(spec.Scopes, pair[1]) {
			errs = append(errs, field.Invalid(path, spec.Scopes, "conflicting scopes"))
		}
	}
	return errs
}

// selectsOthers returns a resource to which no scope applies, because it does not count pods, if there is one.
func selectsOthers(hard corev1.ResourceList) (corev1.ResourceName, bool) {
	for name := range hard {
		if slices.Contains(countedResources, name) && name != corev1.ResourcePods || strings.HasPrefix(string(name), "count/") {
			return name, true
		}
	}
	return "", false
}

func notScoped(spec *corev1.ResourceQuotaSpec, scope corev1.ResourceQuotaScope, other corev1.ResourceName, path *field.Path) *field.Error {
	return field.Invalid(path, spec.Scopes, fmt.Sprintf("unsupported scope applied to resource: scope %s selects pods, but %s counts other resources", scope, other))
}

func validateScopeSelector(spec *corev1.ResourceQuotaSpec, path *field.Path) field.ErrorList {
	if spec.ScopeSelector == nil {
		return nil
	}
	var errs field.ErrorList
	other, selects := selectsOthers(spec.Hard)
	for i, match := range spec.ScopeSelector.MatchExpressions {
		path := path.Index(i)
		switch {
		case !slices.Contains(podScopes, match.ScopeName):
			errs = append(errs, field.Invalid(path.Child("scopeName"), match.ScopeName, "unsupported scope"))
		case selects:
			errs = append(errs, notScoped(spec, match.ScopeName, other, path.Child("scopeName")))
		}
		switch match.Operator {
		case corev1.ScopeSelectorOpIn, corev1.ScopeSelectorOpNotIn:
			if len(match.Values) == 0 {
				errs = append(errs, field.Required(path.Child("values"), "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"))
			}
		case corev1.ScopeSelectorOpExists, corev1.ScopeSelectorOpDoesNotExist:
			if len(match.Values) > 0 {
				errs = append(errs, field.Invalid(path.Child("values"), match.Values, "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"))
			}
		default:
			errs = append(errs, field.Invalid(path.Child("operator"), match.Operator, "not a valid selector operator"))
		}
	}
	return errs
}

// limitRanges are only stored and validated, for clients that run workloads elsewhere.
var limitRanges = &resource.Resource[*corev1.LimitRange, *corev1.LimitRangeList]{
	ShortNames: []string{"limits"},
	Namespaced: true,
	Default: func(obj *corev1.LimitRange) {
		for i := range obj.Spec.Limits {
			defaultLimits(&obj.Spec.Limits[i])
		}
	},
	Strategy: resource.Strategy[*corev1.LimitRange]{
		Validate: func(_ context.Context, obj *corev1.LimitRange) field.ErrorList { return validateLimitRange(obj) },
		ValidateUpdate: func(_ context.Context, obj, old *corev1.LimitRange) field.ErrorList {
			return append(validate.ObjectMetaUpdate(obj, old), validateLimitRange(obj)...)
		},
		UnconditionalUpdate: true,
	},
	Columns: []resource.Column[*corev1.LimitRange]{
		resource.NameColumn[*corev1.LimitRange](),
		{
			Name:        "Created At",
			Description: "CreationTimestamp is a timestamp representing the server time when this object was created.",
			Cell:        func(obj *corev1.LimitRange) any { return obj.CreationTimestamp.UTC().Format("2006-01-02T15:04:05Z") },
		},
	},
}

// defaultLimits sets defaults for containers: the limit from the maximum, the request from the limit or the minimum.
func defaultLimits(item *corev1.LimitRangeItem) {
	if item.Type != corev1.LimitTypeContainer {
		return
	}
	fill := func(target *corev1.ResourceList, from corev1.ResourceList) {
		if *target == nil {
			*target = corev1.ResourceList{}
		}
		for name, quantity := range from {
			if _, set := (*target)[name]; !set {
				(*target)[name] = quantity.DeepCopy()
			}
		}
	}
	fill(&item.Default, item.Max)
	fill(&item.DefaultRequest, item.Default)
	fill(&item.DefaultRequest, item.Min)
}

func validateLimitRange(obj *corev1.LimitRange) field.ErrorList {
	errs := validate.ObjectMeta(obj, true, apivalidation.NameIsDNSSubdomain)
	types := validate.Seen[corev1.LimitType]{}
	for i := range obj.Spec.Limits {
		item, path := &obj.Spec.Limits[i], field.NewPath("spec", "limits").Index(i)
		errs = append(errs, validate.Messages(path.Child("type"), item.Type, validation.IsQualifiedName(string(item.Type)))...)
		if !strings.Contains(string(item.Type), "/") && !slices.Contains([]corev1.LimitType{corev1.LimitTypePod, corev1.LimitTypeContainer, corev1.LimitTypePersistentVolumeClaim}, item.Type) {
			errs = append(errs, field.Invalid(path.Child("type"), item.Type, "must be a standard limit type or fully qualified"))
		}
		errs = append(errs, types.Add(item.Type, path.Child("type"))...)
		errs = append(errs, validateLimits(item, path)...)
	}
	return errs
}

// limits is a field of a LimitRangeItem.
type limits struct {
	name string
	list corev1.ResourceList
}

func validateLimits(item *corev1.LimitRangeItem, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if item.Type == corev1.LimitTypePod {
		if len(item.Default) > 0 {
			errs = append(errs, field.Forbidden(path.Child("default"), "may not be specified when `type` is 'Pod'"))
		}
		if len(item.DefaultRequest) > 0 {
			errs = append(errs, field.Forbidden(path.Child("defaultRequest"), "may not be specified when `type` is 'Pod'"))
		}
	}
	if item.Type == corev1.LimitTypePersistentVolumeClaim && len(item.Min) == 0 && len(item.Max) == 0 {
		errs = append(errs, field.Required(path.Child("limits"), "either minimum or maximum storage value is required, but neither was provided"))
	}
	smallest, largest := limits{"min", item.Min}, limits{"max", item.Max}
	requests, defaults := limits{"defaultRequest", item.DefaultRequest}, limits{"default", item.Default}
	ratios := limits{"maxLimitRequestRatio", item.MaxLimitRequestRatio}
	for _, l := range []limits{largest, smallest, defaults, requests, ratios} {
		for _, name := range slices.Sorted(maps.Keys(l.list)) {
			key, quantity := path.Child(l.name).Key(string(name)), l.list[name]
			errs = append(errs, validate.Messages(key, name, validation.IsQualifiedName(string(name)))...)
			if quantity.Sign() < 0 {
				errs = append(errs, field.Invalid(key, quantity.String(), isNegativeMessage))
			}
		}
	}
	// In this order, none may be greater than one after it.
	ordered := []limits{smallest, requests, defaults, largest}
	for i, smaller := range ordered {
		for _, greater := range ordered[i+1:] {
			errs = append(errs, notGreater(path, smaller, greater)...)
		}
	}
	one := apiresource.MustParse("1")
	for name, ratio := range item.MaxLimitRequestRatio {
		if ratio.Cmp(one) < 0 {
			errs = append(errs, field.Invalid(path.Child("maxLimitRequestRatio").Key(string(name)), ratio.String(), "ratio "+ratio.String()+" is less than 1"))
		}
	}
	return errs
}

func notGreater(path *field.Path, smaller, greater limits) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(smaller.list)) {
		value := smaller.list[name]
		if limit, set := greater.list[name]; set && value.Cmp(limit) > 0 {
			errs = append(errs, field.Invalid(path.Child(smaller.name).Key(string(name)), value.String(),
				smaller.name+" value "+value.String()+" is greater than "+greater.name+" value "+limit.String()))
		}
	}
	return errs
}
