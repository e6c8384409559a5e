// Package metriclabels limits the label values of Kubernetes metrics. Tenants choose the names of APIs, webhooks and
// policies, and URL paths, and each new value would create series for the lifetime of the process. Built-in resources
// keep their labels. All other values, and invalid status codes, which webhooks may return, become Unexpected.
//
//	built-in tables, system definitions ─► allow-lists of labels   metrics of requests and webhooks
//	                                   └─► Named                   metrics of storage and watch caches
package metriclabels

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-base/metrics"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/registry"
)

// Unexpected is component-base's replacement for values that are not allowed.
const Unexpected = "unexpected"

var (
	request  = []string{"group", "version", "resource", "subresource"}
	response = append([]string{"code"}, request...)
	event    = []string{"group", "version", "resource"}
	refusal  = []string{"resource"}
	webhook  = []string{"name"}
	policy   = []string{"policy", "policy_binding"}
)

// kept are the labels of each metric for which some values are allowed, and bare those without allowed values. Metrics
// of requests that are rejected before the resource is known keep few, because clients can combine values arbitrarily.
var (
	kept = map[string][]string{
		"apiserver_request_total":                response,
		"apiserver_request_duration_seconds":     request,
		"apiserver_request_sli_duration_seconds": request,
		"apiserver_response_sizes":               request,
		"apiserver_longrunning_requests":         request,
		"apiserver_requested_deprecated_apis":    request,
		"apiserver_selfrequest_total":            request,
		"apiserver_watch_events_total":           event,
		"apiserver_watch_events_sizes":           event,
		"apiserver_watch_list_duration_seconds":  event,
		"apiserver_request_body_size_bytes":      {"group", "resource"},
		"apiserver_request_terminations_total":   refusal,
		"apiserver_request_aborts_total":         refusal,

		"apiserver_admission_webhook_request_total":   {"code"},
		"apiserver_admission_webhook_rejection_count": {"rejection_code"},
	}
	bare = map[string][]string{
		"apiserver_request_terminations_total":                         {"group", "version", "subresource"},
		"apiserver_request_aborts_total":                               {"group", "version", "subresource"},
		"apiserver_admission_webhook_admission_duration_seconds":       webhook,
		"apiserver_admission_webhook_rejection_count":                  webhook,
		"apiserver_admission_webhook_fail_open_count":                  webhook,
		"apiserver_admission_webhook_request_total":                    webhook,
		"apiserver_admission_match_condition_evaluation_errors_total":  webhook,
		"apiserver_admission_match_condition_exclusions_total":         webhook,
		"apiserver_admission_match_condition_evaluation_seconds":       webhook,
		"apiserver_validating_admission_policy_check_total":            policy,
		"apiserver_validating_admission_policy_check_duration_seconds": policy,
		"apiserver_mutating_admission_policy_check_total":              policy,
		"apiserver_mutating_admission_policy_check_duration_seconds":   policy,
		"apiserver_crd_conversion_webhook_duration_seconds":            {"crd_name", "from_version", "to_version"},
	}
)

var resources = sync.OnceValues(func() ([]schema.GroupVersionResource, error) {
	crds, err := config.SystemCRDs()
	if err != nil {
		return nil, fmt.Errorf("reading the definitions of system APIs: %w", err)
	}
	all := append(registry.Resources(), schema.GroupVersionResource{Group: apiextensions.GroupName, Version: "v1", Resource: "customresourcedefinitions"})
	for _, crd := range crds {
		for i := range crd.Spec.Versions {
			all = append(all, schema.GroupVersionResource{Group: crd.Spec.Group, Version: crd.Spec.Versions[i].Name, Resource: crd.Spec.Names.Plural})
		}
	}
	return all, nil
})

// Named returns the built-in and system resources, which have their own series.
func Named() (sets.Set[schema.GroupResource], error) {
	all, err := resources()
	if err != nil {
		return nil, err
	}
	named := sets.New[schema.GroupResource]()
	for _, resource := range all {
		named.Insert(resource.GroupResource())
	}
	return named, nil
}

// Bound sets the allow-lists, which are global to the process, once. It must be called before requests are served.
var Bound = sync.OnceValue(func() error {
	all, err := resources()
	if err != nil {
		return err
	}
	metrics.SetLabelAllowList(allowLists(all))
	return nil
})

// allowLists returns the allow-lists in the format of component-base, "metric,label" to "value,value".
func allowLists(resources []schema.GroupVersionResource) map[string]string {
	// Requests without resource have empty labels.
	values := map[string][]string{
		"group":       {"", Unexpected},
		"version":     {"", Unexpected},
		"resource":    {"", Unexpected},
		"subresource": {"", "approval", "finalize", "scale", "status", "token", Unexpected},
	}
	for _, resource := range resources {
		values["group"] = append(values["group"], resource.Group)
		values["version"] = append(values["version"], resource.Version)
		values["resource"] = append(values["resource"], resource.Resource)
	}
	// Calls without response have the code 0.
	codes := []string{"0", Unexpected}
	for code := http.StatusContinue; code <= http.StatusNetworkAuthenticationRequired; code++ {
		if http.StatusText(code) != "" {
			codes = append(codes, strconv.Itoa(code))
		}
	}
	values["code"], values["rejection_code"] = codes, codes
	lists := map[string]string{}
	for metric, labels := range kept {
		for _, label := range labels {
			lists[metric+","+label] = strings.Join(values[label], ",")
		}
	}
	for metric, labels := range bare {
		for _, label := range labels {
			lists[metric+","+label] = Unexpected
		}
	}
	return lists
}
