// Package config contains the manifests that are embedded in the binary: the CustomResourceDefinitions of the system
// APIs, and the APIExports and WorkspaceTypes that exist in root from the start.
//
// crds/ is generated from the API types (generate.sh). exports/ and workspacetypes/ are written manually.
package config

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"slices"

	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

//go:generate ./generate.sh

//go:embed crds/*.yaml exports/*.yaml workspacetypes/*.yaml
var manifests embed.FS

const (
	// logicalClusters is the name of the CRD whose objects are singletons.
	logicalClusters = "logicalclusters.core.kcp.io"
	// workspaces is the name of the CRD whose objects require only a name.
	workspaces = "workspaces.tenancy.kcp.io"
	// workspaceTypes and partitionSets are the names of CRDs with rules of kcp (validation.go).
	workspaceTypes = "workspacetypes.tenancy.kcp.io"
	partitionSets  = "partitionsets.topology.kcp.io"
	// apiBindings and apiExports are the names of the CRDs with two versions.
	apiBindings = "apibindings.apis.kcp.io"
	apiExports  = "apiexports.apis.kcp.io"
	// ConversionHost is the host of the conversion webhooks of the system APIs. No request is sent to it, because
	// servers convert these APIs themselves.
	ConversionHost = "conversion.internal.shardplane.io"
)

// SystemCRDs returns the definitions of the APIs that are served in all logical clusters, with the defaults of the API
// server. The caller owns them.
func SystemCRDs() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	crds, err := adjusted()
	for _, crd := range crds {
		for i := range crd.Spec.Versions {
			version := &crd.Spec.Versions[i]
			version.AdditionalPrinterColumns = append(version.AdditionalPrinterColumns, wideColumns[crd.Name]...)
		}
	}
	return crds, err
}

// wideColumns are the columns of kubectl get -o wide, by the name of the CRD. APIResourceSchemas do not contain them,
// because a change would affect the bindings of all logical clusters.
var wideColumns = map[string][]apiextensionsv1.CustomResourceColumnDefinition{
	workspaces: {
		{Name: "Shard", Type: "string", Priority: 1, JSONPath: `.metadata.annotations['core\.kcp\.io/shard']`, Description: "The shard that the logical cluster is on"},
		{Name: "Cluster", Type: "string", Priority: 1, JSONPath: ".spec.cluster", Description: "The name of the logical cluster"},
	},
}

// adjusted returns the definitions from which APIResourceSchemas are created.
func adjusted() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	crds, err := load[apiextensionsv1.CustomResourceDefinition]("crds")
	if err != nil {
		return nil, err
	}
	for _, crd := range crds {
		if adjust := adjustments[crd.Name]; adjust != nil {
			if err := eachSchema(crd, adjust); err != nil {
				return nil, err
			}
		}
		if crd.Name == apiBindings || crd.Name == apiExports {
			crd.Spec.Conversion = inProcess()
		}
		apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(crd)
	}
	return crds, nil
}

// RootWorkspaceTypes returns the WorkspaceTypes that exist in root from the start. The caller owns them.
func RootWorkspaceTypes() ([]*tenancyv1alpha1.WorkspaceType, error) {
	return load[tenancyv1alpha1.WorkspaceType]("workspacetypes")
}

// adjustments are changes that the API types cannot express, by the name of the CRD.
var adjustments = map[string]func(schema *apiextensionsv1.JSONSchemaProps){
	logicalClusters: requireSingletonName,
	workspaces: func(schema *apiextensionsv1.JSONSchemaProps) {
		defaultSpec(schema)
		restrictWorkspaceName(schema)
	},
	workspaceTypes: restrictWorkspaceName,
	apiBindings:    allowSelectorChanges,
	apiExports: func(schema *apiextensionsv1.JSONSchemaProps) {
		defaultGroupsOfClaims(schema)
		requireLocalPolicy(schema)
	},
	partitionSets: restrictShardSelector,
}

// defaultGroupsOfClaims makes the group of claims optional in both versions. A key of a list requires a default, which
// only the later version has.
func defaultGroupsOfClaims(schema *apiextensionsv1.JSONSchemaProps) {
	claims := schema.Properties["spec"].Properties["permissionClaims"].Items.Schema
	group := claims.Properties["group"]
	group.Default = &apiextensionsv1.JSON{Raw: []byte(`""`)}
	claims.Properties["group"] = group
}

// inProcess is a conversion by the server itself.
func inProcess() *apiextensionsv1.CustomResourceConversion {
	url := "https://" + ConversionHost
	return &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: &url},
			ConversionReviewVersions: []string{"v1"},
		},
	}
}

// allowSelectorChanges removes a rule of the API types, because consumers may change the selector of a claim.
func allowSelectorChanges(schema *apiextensionsv1.JSONSchemaProps) {
	for name, property := range schema.Properties {
		if name == "selector" {
			property.XValidations = nil
		}
		if property.Items != nil && property.Items.Schema != nil {
			allowSelectorChanges(property.Items.Schema)
		}
		allowSelectorChanges(&property)
		schema.Properties[name] = property
	}
}

func eachSchema(crd *apiextensionsv1.CustomResourceDefinition, adjust func(schema *apiextensionsv1.JSONSchemaProps)) error {
	for i := range crd.Spec.Versions {
		schema := crd.Spec.Versions[i].Schema
		if schema == nil || schema.OpenAPIV3Schema == nil {
			return fmt.Errorf("version %s of %s has no schema: run config/generate.sh", crd.Spec.Versions[i].Name, crd.Name)
		}
		adjust(schema.OpenAPIV3Schema)
	}
	return nil
}

// requireSingletonName adds a rule that the API types only document: the LogicalCluster of a logical cluster is named
// "cluster".
func requireSingletonName(schema *apiextensionsv1.JSONSchemaProps) {
	schema.XValidations = append(schema.XValidations, apiextensionsv1.ValidationRule{
		Rule:    "self.metadata.name == 'cluster'",
		Message: "the LogicalCluster of a logical cluster is named \"cluster\"",
	})
}

// defaultSpec makes the spec optional, because all its fields are. Typed clients always send a spec.
func defaultSpec(schema *apiextensionsv1.JSONSchemaProps) {
	spec := schema.Properties["spec"]
	spec.Default = &apiextensionsv1.JSON{Raw: []byte("{}")}
	schema.Properties["spec"] = spec
	schema.Required = slices.DeleteFunc(schema.Required, func(name string) bool { return name == "spec" })
}

// load parses the manifests in a directory in the order of the file names. Each file contains one object.
func load[T any](dir string) ([]*T, error) {
	files, err := fs.Glob(manifests, path.Join(dir, "*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("listing the embedded manifests of %s: %w", dir, err)
	}
	objects := make([]*T, 0, len(files))
	for _, file := range files {
		raw, err := manifests.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("reading the embedded manifest %s: %w", file, err)
		}
		object := new(T)
		if err := yaml.UnmarshalStrict(raw, object); err != nil {
			return nil, fmt.Errorf("the embedded manifest %s is malformed, fix it and build again: %w", file, err)
		}
		objects = append(objects, object)
	}
	return objects, nil
}
