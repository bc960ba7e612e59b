package descriptors

// Embedded is the embedded set.
var Embedded = compressed
