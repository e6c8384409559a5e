package core

import (
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/registry/validate"
)

// limitRanges are only stored and validated, because logical clusters have no pods, containers and volume claims.
// They are for clients that run such workloads elsewhere.
var limitRanges = &resource.Resource[*corev1.LimitRange]{
	Name:       "limitranges",
	Singular:   "limitrange",
	Kind:       "LimitRange",
	ShortNames: []string{"limits"},
	Namespaced: true,
	New:        func() *corev1.LimitRange { return &corev1.LimitRange{} },
	NewList:    func() runtime.Object { return &corev1.LimitRangeList{} },
	Default: func(obj *corev1.LimitRange) {
		for i := range obj.Spec.Limits {
			defaultLimits(&obj.Spec.Limits[i])
		}
	},
	Strategy: resource.Strategy[*corev1.LimitRange]{
		Validate: func(_ context.Context, obj *corev1.LimitRange) field.ErrorList { return validateLimitRange(obj) },
		ValidateUpdate: func(_ context.Context, obj, old *corev1.LimitRange) field.ErrorList {
			return append(validate.ObjectMetaUpdate(&obj.ObjectMeta, &old.ObjectMeta), validateLimitRange(obj)...)
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

// defaultLimits sets defaults for containers: the default limit from the maximum, and the default request from the
// default limit or the minimum.
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
	errs := validate.ObjectMeta(&obj.ObjectMeta, true, apivalidation.NameIsDNSSubdomain)
	types := map[corev1.LimitType]bool{}
	for i := range obj.Spec.Limits {
		item, path := &obj.Spec.Limits[i], field.NewPath("spec", "limits").Index(i)
		for _, msg := range validation.IsQualifiedName(string(item.Type)) {
			errs = append(errs, field.Invalid(path.Child("type"), item.Type, msg))
		}
		if !strings.Contains(string(item.Type), "/") && !slices.Contains([]corev1.LimitType{corev1.LimitTypePod, corev1.LimitTypeContainer, corev1.LimitTypePersistentVolumeClaim}, item.Type) {
			errs = append(errs, field.Invalid(path.Child("type"), item.Type, "must be a standard limit type or fully qualified"))
		}
		if types[item.Type] {
			errs = append(errs, field.Duplicate(path.Child("type"), item.Type))
		}
		types[item.Type] = true
		errs = append(errs, validateLimits(item, path)...)
	}
	return errs
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
	for _, limits := range []struct {
		name string
		list corev1.ResourceList
	}{{"max", item.Max}, {"min", item.Min}, {"default", item.Default}, {"defaultRequest", item.DefaultRequest}, {"maxLimitRequestRatio", item.MaxLimitRequestRatio}} {
		for _, name := range slices.Sorted(maps.Keys(limits.list)) {
			key, quantity := path.Child(limits.name).Key(string(name)), limits.list[name]
			for _, msg := range validation.IsQualifiedName(string(name)) {
				errs = append(errs, field.Invalid(key, name, msg))
			}
			if quantity.Sign() < 0 {
				errs = append(errs, field.Invalid(key, quantity.String(), isNegativeMessage))
			}
		}
	}
	// In this order, none may be greater than one after it.
	ordered := []struct {
		name string
		list corev1.ResourceList
	}{{"min", item.Min}, {"defaultRequest", item.DefaultRequest}, {"default", item.Default}, {"max", item.Max}}
	for i, smaller := range ordered {
		for _, greater := range ordered[i+1:] {
			errs = append(errs, notGreater(path, smaller.name, smaller.list, greater.name, greater.list)...)
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

func notGreater(path *field.Path, smaller string, small corev1.ResourceList, greater string, great corev1.ResourceList) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(small)) {
		value, limit := small[name], great[name]
		if _, set := great[name]; set && value.Cmp(limit) > 0 {
			errs = append(errs, field.Invalid(path.Child(smaller).Key(string(name)), value.String(),
				smaller+" value "+value.String()+" is greater than "+greater+" value "+limit.String()))
		}
	}
	return errs
}
