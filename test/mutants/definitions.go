package mutants

// definitions are mutants of custom resources and admission.
var definitions = []Mutant{}
