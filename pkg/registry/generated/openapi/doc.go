// Package openapi holds the generated OpenAPI definitions of every type that
// the server's built-in APIs use.
//
// The command below names the packages that are covered. Add a package of
// k8s.io/api when its types are served, then run `make generate`. openapi-gen
// is k8s.io/kube-openapi/cmd/openapi-gen of the version that go.mod names.
// served.txt names the models that the servers' documents show; openapi-prune,
// of tools, takes out what these do not reach. A test of test/integration holds
// that it is what is served, and with -rewrite writes it anew.
package openapi

//go:generate openapi-gen --output-dir . --output-pkg github.com/shardplane/shardplane/pkg/registry/generated/openapi --output-file zz_generated.openapi.go --report-filename /dev/null k8s.io/api/admissionregistration/v1 k8s.io/api/authentication/v1 k8s.io/api/authorization/v1 k8s.io/api/autoscaling/v1 k8s.io/api/certificates/v1 k8s.io/api/coordination/v1 k8s.io/api/core/v1 k8s.io/api/events/v1 k8s.io/api/rbac/v1 k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1 k8s.io/apimachinery/pkg/api/resource k8s.io/apimachinery/pkg/apis/meta/v1 k8s.io/apimachinery/pkg/runtime k8s.io/apimachinery/pkg/util/intstr k8s.io/apimachinery/pkg/version
//go:generate openapi-prune zz_generated.openapi.go served.txt
