"""From a name to the record and back: specs are parsed and made, factories registered, records explained."""
