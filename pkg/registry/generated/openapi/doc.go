// Package openapi contains the generated OpenAPI definitions of all types that the server's built-in APIs use.
//
// To add a package of k8s.io/api, add it to the command below, and run `make generate`. openapi-gen has the version of
// k8s.io/kube-openapi in go.mod. openapi-prune, in tools, removes what the models in served.txt do not need. A test of
// test/integration compares these with the served documents, and writes them with -rewrite.
package openapi

//go:generate openapi-gen --output-dir . --output-pkg github.com/shardplane/shardplane/pkg/registry/generated/openapi --output-file zz_generated.openapi.go --report-filename /dev/null k8s.io/api/admissionregistration/v1 k8s.io/api/authentication/v1 k8s.io/api/authorization/v1 k8s.io/api/autoscaling/v1 k8s.io/api/certificates/v1 k8s.io/api/coordination/v1 k8s.io/api/core/v1 k8s.io/api/events/v1 k8s.io/api/rbac/v1 k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1 k8s.io/apimachinery/pkg/api/resource k8s.io/apimachinery/pkg/apis/meta/v1 k8s.io/apimachinery/pkg/runtime k8s.io/apimachinery/pkg/util/intstr k8s.io/apimachinery/pkg/version
//go:generate openapi-prune zz_generated.openapi.go served.txt
